#include "ops/gemm.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "ops/backend.h"
#include "ops/cuda/product.h"
#include "ops/cuda/stream_state.h"

namespace heddle::ops::cuda {

void cublas_failed(cublasStatus_t status, const char* call, const char* file, int line) {
  throw Error(ErrorCode::resources,
              fmt::format("{}: {} ({}:{})", call, cublasLtGetStatusString(status), file, line));
}

Product::Product() {
  HEDDLE_CUBLAS(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
}

Product::~Product() {
  for (const auto layout : {a, b, c}) {
    if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
  }
  cublasLtMatmulDescDestroy(operation);
}

namespace {

/// What NVIDIA recommends for Hopper.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

cudaDataType_t type_of(DType dtype) {
  HEDDLE_CHECK(dtype == DType::f32 || dtype == DType::bf16, "a matrix product of {}",
               name_of(dtype));
  return dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

/// A matrix of one row may have any stride, but BLAS wants at least the width.
std::int64_t leading(const Tensor& t) {
  return std::max({t.stride(0), t.size(1), std::int64_t{1}});
}

/// The largest power of two, up to 256, that divides the address.
std::uint32_t alignment_of(const Tensor& t) {
  const auto address = reinterpret_cast<std::uintptr_t>(t.bytes());
  std::uint32_t alignment = 256;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

/// One call. cuBLASLt's matrices are column by column, so it is asked for c^T = op(b)^T op(a)^T:
/// our rows are its columns.
struct Call {
  const Tensor &a, &b, &c, &bias;  // bias may be absent
  Transpose transpose_a, transpose_b;

  std::vector<std::int64_t> key() const {
    std::vector<std::int64_t> key{transpose_a == Transpose::yes, transpose_b == Transpose::yes,
                                  bias.defined()};
    for (const Tensor* t : {&a, &b, &c}) {
      key.insert(key.end(), {static_cast<std::int64_t>(t->dtype()), t->size(0), t->size(1),
                             leading(*t), alignment_of(*t)});
    }
    return key;
  }
};

template <class T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  HEDDLE_CUBLAS(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value));
}

template <class T>
void prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
            const T& value) {
  HEDDLE_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
}

cublasLtMatrixLayout_t layout_of(const Tensor& t) {
  cublasLtMatrixLayout_t layout = nullptr;
  HEDDLE_CUBLAS(cublasLtMatrixLayoutCreate(&layout, type_of(t.dtype()),
                                           static_cast<std::uint64_t>(t.size(1)),
                                           static_cast<std::uint64_t>(t.size(0)), leading(t)));
  return layout;
}

cublasLtMatmulAlgo_t best_algorithm(cublasLtHandle_t handle, const Product& product,
                                    const Call& call) {
  cublasLtMatmulPreference_t preference = nullptr;
  HEDDLE_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
  const std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                        decltype(&cublasLtMatmulPreferenceDestroy)>
      owner(preference, cublasLtMatmulPreferenceDestroy);
  prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(call.b));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(call.a));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(call.c));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(call.c));
  cublasLtMatmulHeuristicResult_t found = {};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, product.operation, product.a, product.b, product.c,
                                     product.c, preference, 1, &found, &count);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
    fail(ErrorCode::resources, "cuBLASLt has no product of {} {} and {} {} into {} {}",
         name_of(call.a.dtype()), call.a.shape().text(), name_of(call.b.dtype()),
         call.b.shape().text(), name_of(call.c.dtype()), call.c.shape().text());
  }
  return found.algo;
}

/// Sets up the product; the pointer of the bias is set by every call.
std::unique_ptr<Product> make_product(const Call& call, StreamState& state) {
  const auto op = [](Transpose t) { return t == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N; };
  auto product = std::make_unique<Product>();
  set(product->operation, CUBLASLT_MATMUL_DESC_TRANSA, op(call.transpose_b));
  set(product->operation, CUBLASLT_MATMUL_DESC_TRANSB, op(call.transpose_a));
  if (call.bias.defined()) {
    set(product->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(product->operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(call.bias.dtype()));
  }
  product->a = layout_of(call.b);
  product->b = layout_of(call.a);
  product->c = layout_of(call.c);
  product->algorithm = best_algorithm(state.blas, *product, call);
  return product;
}

void run(const Call& call, GemmScale scale, Stream& stream) {
  StreamState& state = state_of(stream);
  auto& product = state.products[call.key()];
  if (!product) product = make_product(call, state);
  if (call.bias.defined()) {
    const void* const bias = call.bias.bytes();
    set(product->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  const auto alpha = static_cast<float>(scale.alpha), beta = static_cast<float>(scale.beta);
  HEDDLE_CUBLAS(cublasLtMatmul(state.blas, product->operation, &alpha, call.b.bytes(), product->a,
                               call.a.bytes(), product->b, &beta, call.c.bytes(), product->c,
                               call.c.bytes(), product->c, &product->algorithm,
                               state.workspace.at_least(kWorkspaceBytes), kWorkspaceBytes,
                               state.stream));
}

void check_shapes(const Call& call) {
  const auto& [a, b, c, bias, transpose_a, transpose_b] = call;
  const bool ta = transpose_a == Transpose::yes, tb = transpose_b == Transpose::yes;
  HEDDLE_CHECK(a.dims() == 2 && b.dims() == 2 && c.dims() == 2, "gemm of {}, {} into {}",
               a.shape().text(), b.shape().text(), c.shape().text());
  const std::int64_t m = c.size(0), n = c.size(1), k = a.size(ta ? 0 : 1);
  HEDDLE_CHECK(a.size(ta ? 1 : 0) == m && b.size(tb ? 1 : 0) == k && b.size(tb ? 0 : 1) == n,
               "gemm of {}{}, {}{} into {}", a.shape().text(), ta ? "^T" : "", b.shape().text(),
               tb ? "^T" : "", c.shape().text());
  HEDDLE_CHECK(a.dtype() == b.dtype() && (c.dtype() == a.dtype() || c.dtype() == DType::f32),
               "gemm of {}, {} into {}", name_of(a.dtype()), name_of(b.dtype()),
               name_of(c.dtype()));
  HEDDLE_CHECK(!bias.defined() || (bias.shape() == Shape{n} && bias.dtype() == c.dtype()),
               "bias {} {} for {} {}", name_of(bias.dtype()), bias.shape().text(),
               name_of(c.dtype()), c.shape().text());
}

}  // namespace

void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
          const Tensor& c, GemmScale scale, Stream& stream) {
  const Tensor no_bias;
  const Call call{a, b, c, no_bias, transpose_a, transpose_b};
  check_shapes(call);
  if (c.count() == 0) return;
  if (a.count() == 0 || scale.alpha == 0.0) {
    if (scale.beta == 0.0) return fill(c, 0.0, stream);
    return cuda::scale(c, scale.beta, stream);
  }
  run(call, scale, stream);
}

void gemm_bias(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
               const Tensor& bias_N, const Tensor& c, Stream& stream) {
  const Call call{a, b, c, bias_N, transpose_a, transpose_b};
  check_shapes(call);
  if (c.count() == 0) return;
  HEDDLE_CHECK(a.count() > 0, "a product of {} with a bias", a.shape().text());
  run(call, {}, stream);
}

std::string gemm_backend(Device) {
  const std::size_t version = cublasLtGetVersion();
  return fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace heddle::ops::cuda
