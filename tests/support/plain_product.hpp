// Products of row groups by plain loops on the host: a model of lrmoe::grouped_product.
#pragma once

#include <lrmoe/experts/grouped_product.hpp>

#include "fixture.hpp"

class plain_product {
 public:
  explicit plain_product(lrmoe::workspace<fixture::device>& /*scratch*/) {}

  template <class Element>
  using rows = lrmoe::matrix_view<const Element, fixture::device>;
  using groups_type = lrmoe::row_groups<fixture::device>;

  static std::int64_t workspace_bytes(const fixture::space_type& /*space*/) { return 0; }
  void reserve(const fixture::space_type& /*space*/) {}

  template <class Element>
  void multiply_rows(const fixture::space_type& /*space*/, const rows<Element>& a,
                     const groups_type& groups,
                     const lrmoe::tensor_view<const Element, fixture::device>& weights,
                     bool transpose, const lrmoe::matrix_view<Element, fixture::device>& c) {
    using real = lrmoe::accumulate_t<Element>;
    for (std::int64_t g = 0; g < groups.size(); ++g)
      for (std::int64_t r = groups.first(g); r < groups.first(g + 1); ++r)
        for (std::size_t j = 0; j < c.extent(1); ++j) {
          const std::int64_t row = r - groups.first();
          real sum = 0;
          for (std::size_t i = 0; i < a.extent(1); ++i)
            sum += static_cast<real>(a(row, i)) *
                   static_cast<real>(transpose ? weights(g, j, i) : weights(g, i, j));
          c(row, j) = static_cast<Element>(sum);
        }
  }

  template <class Element>
  void sum_products(
      const fixture::space_type& /*space*/, const rows<Element>& a, const rows<Element>& b,
      const groups_type& groups,
      const lrmoe::tensor_view<lrmoe::accumulate_t<Element>, fixture::device>& gradient,
      lrmoe::gradient_update update) {
    using real = lrmoe::accumulate_t<Element>;
    for (std::int64_t g = 0; g < groups.size(); ++g)
      for (std::size_t i = 0; i < a.extent(1); ++i)
        for (std::size_t j = 0; j < b.extent(1); ++j) {
          real sum = 0;
          for (std::int64_t r = groups.first(g); r < groups.first(g + 1); ++r)
            sum += static_cast<real>(a(r - groups.first(), i)) *
                   static_cast<real>(b(r - groups.first(), j));
          if (groups.rows(g) == 0) continue;
          gradient(g, i, j) = update == lrmoe::gradient_update::add ? gradient(g, i, j) + sum : sum;
        }
  }
};
