#include "train/session.h"

#include "train/model_setup.h"

namespace heddle {
namespace {

Stream stream_of(const RunSetup& setup) {
  Stream stream(setup.options.threads, setup.options.device);
  stream.set_deterministic(setup.config.run.deterministic);
  return stream;
}

}  // namespace

Session::Session(const RunSetup& setup)
    : stream(stream_of(setup)),
      memory(setup.options.device),
      host(memory.for_host()),
      mesh(setup.plan.mesh, setup.placed.all()),
      model(setup.spec, build_options(setup.config, setup.spec), setup.plan, mesh,
            ParamStore::Purpose::training, memory),
      optimizer(make_optimizer(optimizer_config(setup.config.optim), model.store())) {
  const OuterPolicy& policy = model.plan().policy.outer;
  make_copy(model, kept_copies(setup.config), build_options(setup.config, setup.spec),
            optimizer_config(setup.config.optim), memory, copy);
  if (policy.every > 0) outer = std::make_unique<OuterSteps>(model.store(), model.units(), policy);
}

}  // namespace heddle
