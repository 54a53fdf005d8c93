// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// Everything but the backends and MPI: include one as well, e.g. <lrmoe/openmp/backend.hpp>, and
/// <lrmoe/exchange/mpi.hpp>.
#include <lrmoe/estimator/any_estimator.hpp>
#include <lrmoe/estimator/exact.hpp>
#include <lrmoe/estimator/pps.hpp>
#include <lrmoe/estimator/top.hpp>
#include <lrmoe/estimator/top_plus_sampled.hpp>
#include <lrmoe/estimator/uniform.hpp>
#include <lrmoe/exchange/any_communicator.hpp>
#include <lrmoe/exchange/logical.hpp>
#include <lrmoe/exchange/sum_array.hpp>
#include <lrmoe/layer.hpp>
#include <lrmoe/memory/expert_memory.hpp>
#include <lrmoe/optimizer/any_state.hpp>
#include <lrmoe/optimizer/expert_optimizer.hpp>
#include <lrmoe/optimizer/replica_sum.hpp>
#include <lrmoe/placement/all_planners.hpp>
#include <lrmoe/quota/annealed.hpp>
#include <lrmoe/quota/any_quota.hpp>
#include <lrmoe/quota/error_bounded.hpp>
#include <lrmoe/quota/fixed_fraction.hpp>
#include <lrmoe/quota/keep_all.hpp>
#include <lrmoe/quota/memory_network.hpp>
#include <lrmoe/quota/peak_capped.hpp>
#include <lrmoe/quota/shared_threshold.hpp>
#include <lrmoe/quota/tile_rounded.hpp>
#include <lrmoe/quota/time_optimal.hpp>
#include <lrmoe/quota/with_floor.hpp>
#include <lrmoe/routing/given_routing.hpp>
#include <lrmoe/routing/sigmoid_top_k.hpp>
#include <lrmoe/routing/softmax_top_k.hpp>
#include <lrmoe/scoring/any_scorer.hpp>
#include <lrmoe/version.hpp>
