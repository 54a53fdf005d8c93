// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <lrmoe/memory/saved_activations.hpp>
#include <lrmoe/types.hpp>

#include "../support/layer_options.hpp"

namespace bench::compare {

enum class router_kind { softmax, softmax_raw, sigmoid, given };
enum class estimator_kind { exact, pps, top, uniform };

inline const char* name_of(router_kind kind) {
  constexpr const char* names[] = {"softmax", "softmax_raw", "sigmoid", "given"};
  return names[static_cast<int>(kind)];
}
inline const char* name_of(estimator_kind kind) {
  constexpr const char* names[] = {"exact", "pps", "top", "uniform"};
  return names[static_cast<int>(kind)];
}
inline const char* name_of(lrmoe::saved_activations kind) {
  return kind == lrmoe::saved_activations::save        ? "save"
         : kind == lrmoe::saved_activations::recompute ? "recompute"
                                                       : "proxy";
}

/// One layer call that every candidate makes.
struct compare_case {
  std::int64_t T = 0;
  lrmoe::layer_shape shape;
  std::string shape_name;  ///< of a published model, or empty
  std::string skew = "balanced";
  router_kind router = router_kind::softmax;
  estimator_kind estimator = estimator_kind::exact;
  double keep = 1;
  lrmoe::saved_activations saved = lrmoe::saved_activations::save;
  std::int64_t R = 1;
  bool replicas = false;  ///< experts have copies on other ranks

  lrmoe::index_type own_groups = 0,
                    own_groups_kept = 0;  ///< 0: four groups, three kept, where E has them
  double scaling = 1.75;                  ///< of weights from sigmoid scores

  lrmoe::index_type groups() const {
    return own_groups > 0 ? own_groups : shape.E % 4 == 0 && shape.E > 4 ? 4 : 1;
  }
  lrmoe::index_type groups_kept() const {
    return own_groups > 0 ? own_groups_kept : groups() == 4 ? 3 : 1;
  }

  std::int64_t P() const { return T * shape.K; }

  std::string name() const {
    std::string text = shape_name;
    if (text.empty()) {
      text = fmt::format("T{}-K{}-E{}-D{}-F{}", T, shape.K, shape.E, shape.D, shape.F);
      if (shape.F_shared > 0) text += fmt::format("-S{}", shape.F_shared);
    } else {
      text += fmt::format("-T{}", T);
    }
    text += fmt::format("/{}/keep={}/{}/{}/{}", skew, keep, name_of(estimator), name_of(router),
                        name_of(saved));
    if (R > 1) text += fmt::format("/R={}{}", R, replicas ? "/replicas" : "");
    return text;
  }
};

namespace detail {

/// A rule and its share; exact keeps all.
struct keeping {
  estimator_kind estimator;
  double keep;
};
inline const std::vector<keeping> keepings{
    {estimator_kind::exact, 1},     {estimator_kind::pps, 1},       {estimator_kind::pps, 0.5},
    {estimator_kind::pps, 0.25},    {estimator_kind::top, 0.5},     {estimator_kind::top, 0.25},
    {estimator_kind::uniform, 0.5}, {estimator_kind::uniform, 0.25}};
inline const std::vector<std::string> skews{"balanced", "zipf0.6", "zipf1.2", "empty", "hot"};

}  // namespace detail

/// Every skew with every rule and share; every router with every way of saving, with and without a shared
/// expert; odd and extreme shapes; every number of ranks, with and without copies of experts.
inline std::vector<compare_case> default_cases(const std::vector<std::int64_t>& ranks) {
  using lrmoe::saved_activations;
  std::vector<compare_case> cases;
  const compare_case base{.T = 256, .shape = {.D = 64, .F = 48, .E = 8, .K = 2}, .shape_name = {}};
  for (const auto& skew : detail::skews) {
    for (const auto& [estimator, keep] : detail::keepings) {
      auto one = base;
      one.skew = skew, one.estimator = estimator, one.keep = keep;
      cases.push_back(one);
    }
  }
  for (const auto router :
       {router_kind::softmax, router_kind::softmax_raw, router_kind::sigmoid, router_kind::given}) {
    for (const auto saved :
         {saved_activations::save, saved_activations::recompute, saved_activations::proxy}) {
      for (const std::int64_t shared : {0, 24}) {
        for (const bool reduced : {false, true}) {
          compare_case one{.T = 192,
                           .shape = {.D = 48, .F = 32, .E = 16, .K = 4, .F_shared = shared},
                           .shape_name = {},
                           .skew = "zipf0.6",
                           .router = router,
                           .saved = saved};
          if (reduced) one.estimator = estimator_kind::pps, one.keep = 0.25;
          cases.push_back(one);
        }
      }
    }
  }
  struct odd {
    std::int64_t T;
    lrmoe::layer_shape shape;
  };
  for (const auto& [T, shape] :
       std::vector<odd>{{33, {.D = 19, .F = 13, .E = 5, .K = 2}},
                        {1, {.D = 1, .F = 1, .E = 1, .K = 1, .F_shared = 1}},
                        {130, {.D = 128, .F = 129, .E = 4, .K = 1}},
                        {64, {.D = 32, .F = 16, .E = 8, .K = 8}},
                        {3, {.D = 6, .F = 4, .E = 32, .K = 2, .F_shared = 3}},
                        {700, {.D = 135, .F = 9, .E = 2, .K = 2}},
                        {0, {.D = 8, .F = 8, .E = 4, .K = 2, .F_shared = 8}}}) {
    for (const bool reduced : {false, true}) {
      compare_case one{.T = T, .shape = shape, .shape_name = {}};
      if (reduced) one.estimator = estimator_kind::pps, one.keep = 0.5;
      cases.push_back(one);
    }
  }
  for (const std::int64_t R : ranks) {
    if (R == 1) continue;
    for (const bool replicas : {false, true}) {
      for (const char* skew : {"zipf1.2", "hot"}) {
        for (const auto& [estimator, keep] :
             {detail::keeping{estimator_kind::exact, 1}, detail::keeping{estimator_kind::pps, 0.5},
              detail::keeping{estimator_kind::top, 0.25}}) {
          compare_case one{.T = 256,
                           .shape = {.D = 48, .F = 32, .E = 16, .K = 2},
                           .shape_name = {},
                           .skew = skew,
                           .estimator = estimator,
                           .keep = keep,
                           .R = R,
                           .replicas = replicas};
          cases.push_back(one);
        }
      }
    }
    for (const auto router : {router_kind::sigmoid, router_kind::given}) {
      for (const auto saved : {saved_activations::recompute, saved_activations::proxy}) {
        compare_case one{.T = 128,
                         .shape = {.D = 32, .F = 24, .E = 8, .K = 2, .F_shared = 16},
                         .shape_name = {},
                         .skew = "zipf1.2",
                         .router = router,
                         .estimator = estimator_kind::pps,
                         .keep = 0.25,
                         .saved = saved,
                         .R = R,
                         .replicas = true};
        cases.push_back(one);
      }
    }
  }
  return cases;
}

/// Every value of every dimension at least once, in seconds on two cores.
inline std::vector<compare_case> quick_cases() {
  using lrmoe::saved_activations;
  std::vector<compare_case> cases;
  const lrmoe::layer_shape shape{.D = 24, .F = 16, .E = 8, .K = 2};
  const auto add = [&](const char* skew, router_kind router, estimator_kind estimator, double keep,
                       saved_activations saved, std::int64_t shared, std::int64_t R,
                       bool replicas) {
    compare_case one{.T = 96,
                     .shape = shape,
                     .shape_name = {},
                     .skew = skew,
                     .router = router,
                     .estimator = estimator,
                     .keep = keep,
                     .saved = saved,
                     .R = R,
                     .replicas = replicas};
    one.shape.F_shared = shared;
    cases.push_back(one);
  };
  using r = router_kind;
  using e = estimator_kind;
  using s = saved_activations;
  add("balanced", r::softmax, e::exact, 1, s::save, 0, 1, false);
  add("zipf0.6", r::softmax_raw, e::pps, 0.5, s::save, 12, 1, false);
  add("zipf1.2", r::sigmoid, e::top, 0.25, s::recompute, 12, 1, false);
  add("empty", r::given, e::uniform, 0.5, s::save, 0, 1, false);
  add("hot", r::softmax, e::pps, 0.25, s::proxy, 0, 1, false);
  add("zipf1.2", r::softmax, e::exact, 1, s::save, 0, 2, false);
  add("hot", r::softmax, e::pps, 0.5, s::save, 12, 3, true);
  add("zipf1.2", r::given, e::pps, 0.25, s::recompute, 0, 8, true);
  return cases;
}

/// Layers of the published models at T = 1,024.
inline std::vector<compare_case> large_cases() {
  std::vector<compare_case> cases;
  for (const auto& [name, shape] : bench::named_shapes) {
    for (const auto& [estimator, keep] :
         {detail::keeping{estimator_kind::exact, 1}, detail::keeping{estimator_kind::pps, 0.5},
          detail::keeping{estimator_kind::pps, 0.25}}) {
      compare_case one{.T = 1024, .shape = shape, .shape_name = name};
      one.skew = estimator == estimator_kind::exact ? "balanced" : "zipf0.6";
      one.router = shape.F_shared > 0 ? router_kind::sigmoid : router_kind::softmax;
      one.estimator = estimator, one.keep = keep;
      cases.push_back(one);
    }
  }
  return cases;
}

}  // namespace bench::compare
