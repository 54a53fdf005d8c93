// Element offsets beyond 2^31 in activations and in weights. The memory is reserved and not
// committed: only the pages that the operations touch exist.
#include <sys/mman.h>

#include <lrmoe/compaction/combine.hpp>

#include "layer_harness.hpp"

namespace {

using namespace layer_test;
using half = lrmoe::bfloat16;  // OpenBLAS has a global type bfloat16

/// n zeros of which only touched pages take memory.
template <class T>
class sparse_array {
 public:
  explicit sparse_array(integer n) : bytes_(static_cast<std::size_t>(n) * sizeof(T)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(data_ != MAP_FAILED);
  }
  ~sparse_array() { munmap(data_, bytes_); }
  sparse_array(const sparse_array&) = delete;
  sparse_array& operator=(const sparse_array&) = delete;

  T* data() const { return static_cast<T*>(data_); }
  lrmoe::matrix_view<T, device> matrix(integer rows, integer columns) const {
    return lrmoe::matrix_view<T, device>(data(), static_cast<std::size_t>(rows),
                                         static_cast<std::size_t>(columns));
  }
  lrmoe::tensor_view<T, device> tensor(integer planes, integer rows, integer columns) const {
    return lrmoe::tensor_view<T, device>(data(), static_cast<std::size_t>(planes),
                                         static_cast<std::size_t>(rows),
                                         static_cast<std::size_t>(columns));
  }

 private:
  std::size_t bytes_;
  void* data_;
};

constexpr integer beyond = std::int64_t{1} << 31;

template <class T>
fixture::byte_string bits(const T* data, integer count) {
  return {data, static_cast<std::size_t>(count)};
}

void copy(const std::vector<double>& values, half* to) {
  for (const double value : values) *to++ = fixture::element<half>(value);
}

}  // namespace

TEST_CASE("rows whose elements lie beyond 2^31 give the same bits as the first rows", "[experts]") {
  fixture::random draw(5);
  constexpr integer D = 64, F = 64, M = 20;
  const auto x_values = draw.normal(M * D, 1.0, oracle::format::bfloat16);
  const auto d_out_values = draw.normal(M * D, 1.0, oracle::format::bfloat16);
  const array<half> gate_up(draw.normal(2 * D * 2 * F, 0.2, oracle::format::bfloat16));
  const array<half> down(draw.normal(2 * F * D, 0.2, oracle::format::bfloat16));
  const auto gate_up_view = lrmoe::tensor_view<const half, device>(gate_up.tensor(2, D, 2 * F));
  const auto down_view = lrmoe::tensor_view<const half, device>(down.tensor(2, F, D));

  const auto run = [&](integer first) {
    const integer rows = first + M;
    sparse_array<half> x(rows * D), d_out(rows * D), pre(rows * 2 * F), h(rows * F), y(rows * D),
        d_pre(rows * 2 * F), scaled_h(rows * F), dx(rows * D);
    copy(x_values, x.data() + first * D);
    copy(d_out_values, d_out.data() + first * D);
    const auto at = static_cast<index_type>(first);
    const std::vector<index_type> host_offsets{at, at + 7, at + 20};
    const array<index_type> offsets(host_offsets);
    // Row i of a gathered input is matrix(index(i)); rows before the first are not looked at.
    sparse_array<index_type> index(rows);
    for (integer i = first; i < rows; ++i) index.data()[i] = static_cast<index_type>(i);
    const lrmoe::vector_view<const index_type, device> index_view(index.data(),
                                                                  static_cast<std::size_t>(rows));
    array<float> d_gate_up(std::vector<double>(2 * D * 2 * F, 0.0)),
        d_down(std::vector<double>(2 * F * D, 0.0));

    lrmoe::ledger account;
    lrmoe::workspace<device> scratch(account);
    backend::expert_operations on(scratch);
    const space_type space;
    const lrmoe::row_groups<device> groups{offsets.vector(), host_offsets};
    on.gate_up(space, lrmoe::gathered_rows<half, device>{x.matrix(rows, D), index_view}, groups,
               gate_up_view, pre.matrix(rows, 2 * F), h.matrix(rows, F),
               lrmoe::vector_view<float, device>{});
    on.down(space, lrmoe::gathered_rows<half, device>{h.matrix(rows, F)}, groups, down_view,
            y.matrix(rows, D));
    lrmoe::swiglu_kept_rows<half, device> kept;
    kept.x = {x.matrix(rows, D), index_view};
    kept.pre = {pre.matrix(rows, 2 * F), index_view};
    kept.d_out = {d_out.matrix(rows, D), index_view};
    kept.groups = groups;
    on.down_backward(space, kept, down_view, d_pre.matrix(rows, 2 * F), scaled_h.matrix(rows, F),
                     lrmoe::vector_view<float, device>{});
    on.weight_gradient(space, lrmoe::gathered_rows<half, device>{scaled_h.matrix(rows, F)},
                       kept.d_out, groups, d_down.tensor(2, F, D));
    on.weight_gradient(space, kept.x, lrmoe::gathered_rows<half, device>{d_pre.matrix(rows, 2 * F)},
                       groups, d_gate_up.tensor(2, D, 2 * F));
    on.gate_up_backward(space, lrmoe::gathered_rows<half, device>{d_pre.matrix(rows, 2 * F)},
                        groups, gate_up_view, dx.matrix(rows, D));
    // Two tokens of which each sums two far rows.
    const array<index_type> row_of_pair(std::vector<index_type>{at, at + 19, at + 3, -1});
    const array<half> out(2 * D);
    lrmoe::combine(space, lrmoe::matrix_view<const half, device>(y.matrix(rows, D)),
                   lrmoe::vector_view<const index_type, device>(row_of_pair.vector()),
                   lrmoe::matrix_view<const float, device>{},
                   lrmoe::matrix_view<const half, device>{}, out.matrix(2, D));
    space.fence("lrmoe_test::large_offsets");
    for (const double value : out.values()) REQUIRE(std::isfinite(value));
    CHECK(out.data()[0].bits != 0);
    return std::vector{bits(pre.data() + first * 2 * F, M * 2 * F),
                       bits(h.data() + first * F, M * F),
                       bits(y.data() + first * D, M * D),
                       bits(d_pre.data() + first * 2 * F, M * 2 * F),
                       bits(scaled_h.data() + first * F, M * F),
                       bits(dx.data() + first * D, M * D),
                       d_gate_up.bits(),
                       d_down.bits(),
                       out.bits()};
  };
  const auto near = run(0);
  CHECK(run(beyond / D + 3) == near);
}

TEST_CASE("experts whose weights lie beyond 2^31 elements train as the first ones do",
          "[experts]") {
  fixture::random draw(6);
  constexpr integer T = 30, D = 64, F = 64;
  problem p =
      random_problem(draw, {T, D, F, 2, 1, 0}, oracle::format::bfloat16, routing_kind::given);
  using policies = policies_of<lrmoe::given_routing>;
  policies choice;
  choice.estimator = lrmoe::top{};

  const auto run = [&](integer E) {
    // Expert 1 of the problem becomes the last of E experts; all between are empty.
    sparse_array<half> gate_up(E * D * 2 * F), down(E * F * D);
    sparse_array<float> d_gate_up(E * D * 2 * F), d_down(E * F * D);
    const integer wide = D * 2 * F, narrow = F * D;
    for (const integer e : {integer{0}, integer{1}}) {
      const integer to = e == 0 ? 0 : E - 1;
      copy({p.in.gate_up.begin() + e * wide, p.in.gate_up.begin() + (e + 1) * wide},
           gate_up.data() + to * wide);
      copy({p.in.down.begin() + e * narrow, p.in.down.begin() + (e + 1) * narrow},
           down.data() + to * narrow);
    }
    problem moved = p;
    for (auto& e : moved.in.experts) e = e == 0 ? 0 : static_cast<std::int32_t>(E - 1);
    const call<half> views(moved);
    lrmoe::expert_weights<half, device> weights;
    weights.gate_up = gate_up.tensor(E, D, 2 * F);
    weights.down = down.tensor(E, F, D);
    lrmoe::expert_gradients<float, device> gradients;
    gradients.gate_up = d_gate_up.tensor(E, D, 2 * F);
    gradients.down = d_down.tensor(E, F, D);
    lrmoe::context<backend> context;
    layer_of<policies, half> layer(context, {D, F, E, 1, 0}, choice);
    layer.forward(0, views.x_view(), views.router_input<lrmoe::given_routing>(), weights,
                  views.out_view());
    layer.backward(views.d_out_view(), weights, views.dx_view(),
                   views.router_gradient<lrmoe::given_routing>(), gradients);
    std::vector<fixture::byte_string> result{views.out.bits(), views.dx.bits(),
                                             views.d_given.bits()};
    for (const integer e : {integer{0}, E - 1}) {
      result.push_back(bits(d_gate_up.data() + e * wide, wide));
      result.push_back(bits(d_down.data() + e * narrow, narrow));
    }
    return result;
  };
  CHECK(run(beyond / (F * D) + 3) == run(2));
}
