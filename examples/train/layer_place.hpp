// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <memory>

#if LRMOE_HAS_CUDA_BACKEND
#include <lrmoe/cuda/backend.hpp>
#endif

#include "device_layer.hpp"
#include "error.hpp"
#include "expert_layer.hpp"
#include "options.hpp"
#include "staged_ranks.hpp"

namespace train {

/// Where the MoE layers of a model compute. Everything else of the model is on the host.
class layer_place {
 public:
  layer_place() = default;
  layer_place(const layer_place&) = delete;
  layer_place& operator=(const layer_place&) = delete;
  virtual ~layer_place() = default;

  /// The layer must not outlive the place.
  virtual std::unique_ptr<expert_layer> make_layer(const lrmoe::layer_shape& shape,
                                                   const moe_policies& policies,
                                                   std::uint32_t layer_id) = 0;
  /// The account of the memory that layers use there; a budget in it bounds their plans.
  virtual lrmoe::ledger& memory() = 0;
};

/// On the host, on the environment of the rest of the model.
class host_place final : public layer_place {
 public:
  explicit host_place(moe_environment& environment) : environment_(environment) {}

  std::unique_ptr<expert_layer> make_layer(const lrmoe::layer_shape& shape,
                                           const moe_policies& policies,
                                           std::uint32_t layer_id) override {
    return std::make_unique<host_layer>(environment_, shape, policies, layer_id);
  }
  lrmoe::ledger& memory() override { return environment_.memory; }

 private:
  moe_environment& environment_;
};

/// On the device of a backend, with the rates and the ranks of the host's environment.
template <lrmoe::backend Backend>
class device_place final : public layer_place {
 public:
  explicit device_place(moe_environment& host) : environment_(staged_ranks(host.ranks)) {
    environment_.rates = host.rates;
  }

  std::unique_ptr<expert_layer> make_layer(const lrmoe::layer_shape& shape,
                                           const moe_policies& policies,
                                           std::uint32_t layer_id) override {
    return std::make_unique<device_layer<staged>>(environment_, shape, policies, layer_id);
  }
  lrmoe::ledger& memory() override { return environment_.memory; }

 private:
  using staged = lrmoe::with_ranks<Backend, staged_ranks>;
  lrmoe::context<staged> environment_;
};

using place_maker = std::unique_ptr<layer_place> (*)(moe_environment&);

template <class Place>
std::unique_ptr<layer_place> make_place(moe_environment& host) {
  return std::make_unique<Place>(host);
}

/// The place that --backend asks for.
inline place_maker place_of(backend_choice backend) {
#if LRMOE_HAS_CUDA_BACKEND
  if (backend == backend_choice::cuda) return make_place<device_place<lrmoe::cuda::backend<>>>;
#endif
  require(backend == backend_choice::host, "{}", no_cuda_message);
  return make_place<host_place>;
}

}  // namespace train
