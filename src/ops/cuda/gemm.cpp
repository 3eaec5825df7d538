#include "ops/gemm.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "ops/backend.h"
#include "ops/cuda/product.h"
#include "ops/cuda/stream_state.h"
#include "ops/cuda/trials.h"
#include "tensor/cuda/check.h"

namespace heddle::ops::cuda {

void cublas_failed(cublasStatus_t status, const char* call, const char* file, int line) {
  throw Error(ErrorCode::resources,
              fmt::format("{}: {} ({}:{})", call, cublasLtGetStatusString(status), file, line));
}

Product::Product() {
  HEDDLE_CUBLAS(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
}

Product::~Product() {
  for (const auto layout : {a, b, c, d}) {
    if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
  }
  cublasLtMatmulDescDestroy(operation);
}

namespace {

/// What cuBLASLt is asked for when it may be tried. Fewer than `kFew` are a sign that it found no
/// kernel that fits, as for odd sizes.
constexpr int kCandidates = 32, kFew = 4;

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
  const Tensor &a, &b, &c;
  const Tensor &bias, &addend;  // may be absent
  Transpose transpose_a, transpose_b;

  std::vector<std::int64_t> key(GemmScale scale, bool is_deterministic) const {
    std::vector<std::int64_t> key{transpose_a == Transpose::yes, transpose_b == Transpose::yes,
                                  bias.defined(), scale.beta != 0.0, is_deterministic};
    for (const Tensor* t : {&a, &b, &c, &source()}) {
      key.insert(key.end(), {static_cast<std::int64_t>(t->dtype()), t->size(0), t->size(1),
                             leading(*t), alignment_of(*t)});
    }
    return key;
  }
  /// What is multiplied by beta and added.
  const Tensor& source() const { return addend.defined() ? addend : c; }
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

using Candidates = std::vector<cublasLtMatmulAlgo_t>;

/// Ways to add the parts of a sum that several processors have. In the type of computation it is
/// always f32; the other ways round each part to the type of c.
enum class Reduction : std::uint32_t {
  in_f32 = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
  any = CUBLASLT_REDUCTION_SCHEME_MASK
};

/// What cuBLASLt thinks fastest, the best first.
Candidates candidates(cublasLtHandle_t handle, const Product& product, const Call& call, int most,
                      Reduction reduction) {
  cublasLtMatmulPreference_t preference = nullptr;
  HEDDLE_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
  const std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                        decltype(&cublasLtMatmulPreferenceDestroy)>
      owner(preference, cublasLtMatmulPreferenceDestroy);
  prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, Workspace::kLeastBytes);
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(call.b));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(call.a));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(call.source()));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(call.c));
  prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(reduction));
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(most));
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, product.operation, product.a, product.b, product.c,
                                     product.d, preference, most, found.data(), &count);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
    fail(ErrorCode::resources, "cuBLASLt has no product of {} {} and {} {} into {} {}",
         name_of(call.a.dtype()), call.a.shape().text(), name_of(call.b.dtype()),
         call.b.shape().text(), name_of(call.c.dtype()), call.c.shape().text());
  }
  Candidates algorithms;
  for (int i = 0; i < count; ++i) {
    const auto& result = found[static_cast<std::size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(result.algo);
  }
  return algorithms;
}

cublasStatus_t multiply(const Product& product, const cublasLtMatmulAlgo_t& algorithm,
                        const Call& call, GemmScale scale, void* c, StreamState& state) {
  const auto alpha = static_cast<float>(scale.alpha), beta = static_cast<float>(scale.beta);
  const void* const source = call.addend.defined() ? call.addend.bytes() : c;
  return cublasLtMatmul(state.blas, product.operation, &alpha, call.b.bytes(), product.a,
                        call.a.bytes(), product.b, &beta, source, product.c, c, product.d,
                        &algorithm, state.workspace.at_least(Workspace::kLeastBytes),
                        Workspace::kLeastBytes, state.stream);
}

/// The fastest of the candidates when tried. The result goes where it is about to be overwritten
/// anyway, or, where c itself is added to, is thrown away.
cublasLtMatmulAlgo_t fastest(const Candidates& algorithms, const Product& product, const Call& call,
                             GemmScale scale, StreamState& state) {
  void* scratch = nullptr;
  if (scale.beta != 0.0 && !call.addend.defined()) {
    const auto elements = static_cast<std::size_t>(call.c.size(0) * leading(call.c));
    if (cudaMallocAsync(&scratch, elements * size_of(call.c.dtype()), state.stream) !=
        cudaSuccess) {
      cudaGetLastError();  // no room for trials
      return algorithms.front();
    }
  }
  void* const c = scratch != nullptr ? scratch : call.c.bytes();
  const auto run = [&](int i) {
    return multiply(product, algorithms[static_cast<std::size_t>(i)], call, scale, c, state) ==
           CUBLAS_STATUS_SUCCESS;
  };
  const int best = fastest_way(static_cast<int>(algorithms.size()), run, state.stream);
  if (scratch != nullptr) HEDDLE_CUDA(cudaFreeAsync(scratch, state.stream));
  return algorithms[static_cast<std::size_t>(best)];
}

/// In deterministic mode, and for products too small to matter, cuBLASLt's first choice; else the
/// fastest of a few that are tried out.
cublasLtMatmulAlgo_t best_algorithm(const Product& product, const Call& call, GemmScale scale,
                                    bool is_deterministic, StreamState& state) {
  const double work = static_cast<double>(call.c.count()) *
                      static_cast<double>(call.a.size(call.transpose_a == Transpose::yes ? 0 : 1));
  const bool tries = !is_deterministic && work > 1e9;
  const auto found = [&](int most, Reduction reduction) {
    return candidates(state.blas, product, call, most, reduction);
  };
  if (!tries) return found(1, Reduction::in_f32).front();
  Candidates algorithms = found(kCandidates, Reduction::in_f32);
  if (algorithms.size() < kFew && call.c.dtype() == DType::f32) {
    const Candidates more = found(kCandidates, Reduction::any);
    algorithms.insert(algorithms.end(), more.begin(), more.end());
  }
  return fastest(algorithms, product, call, scale, state);
}

void point_to_bias(const Product& product, const Call& call) {
  if (!call.bias.defined()) return;
  const void* const bias = call.bias.bytes();
  set(product.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
}

std::unique_ptr<Product> make_product(const Call& call, GemmScale scale, bool is_deterministic,
                                      StreamState& state) {
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
  product->c = layout_of(call.source());
  product->d = layout_of(call.c);
  point_to_bias(*product, call);
  product->algorithm = best_algorithm(*product, call, scale, is_deterministic, state);
  return product;
}

void run(const Call& call, GemmScale scale, Stream& stream) {
  StreamState& state = state_of(stream);
  auto& product = state.products[call.key(scale, stream.is_deterministic())];
  if (!product) product = make_product(call, scale, stream.is_deterministic(), state);
  point_to_bias(*product, call);
  HEDDLE_CUBLAS(multiply(*product, product->algorithm, call, scale, call.c.bytes(), state));
}

}  // namespace

void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
          const Tensor& c, GemmScale scale, Stream& stream) {
  const Tensor none;
  const Call call{a, b, c, none, none, transpose_a, transpose_b};
  if (c.count() == 0) return;
  if (a.count() == 0 || scale.alpha == 0.0) {
    if (scale.beta == 0.0) return fill(c, 0.0, stream);
    return cuda::scale(c, scale.beta, stream);
  }
  run(call, scale, stream);
}

void gemm_add(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
              const Tensor& bias_N, const Tensor& addend_MN, const Tensor& c, Stream& stream) {
  const Call call{a, b, c, bias_N, addend_MN, transpose_a, transpose_b};
  if (c.count() == 0) return;
  HEDDLE_CHECK(a.count() > 0, "a product of {} with a bias", a.shape().text());
  run(call, {.beta = addend_MN.defined() ? 1.0 : 0.0}, stream);
}

std::string gemm_backend(Device) {
  const std::size_t version = cublasLtGetVersion();
  return fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace heddle::ops::cuda
