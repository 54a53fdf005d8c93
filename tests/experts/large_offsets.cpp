// Element offsets beyond 2^31 in activations and in weights, on the host and on a GPU. Only the pieces that
// the operations touch are filled: the host's memory is reserved and not committed.
#include <sys/mman.h>

#include <lrmoe/compaction/combine.hpp>

#include "layer_harness.hpp"

namespace {

using namespace layer_test;
using stored = lrmoe::bfloat16;

/// Memory of the backend that is not filled.
class unfilled_memory {
 public:
  explicit unfilled_memory(std::size_t bytes) : bytes_(bytes) {
    if constexpr (fixture::on_host) {
      data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      REQUIRE(data_ != MAP_FAILED);
    } else {
      data_ = Kokkos::kokkos_malloc<device::memory_space>("lrmoe_test::large", bytes_);
    }
  }
  ~unfilled_memory() {
    if constexpr (fixture::on_host)
      munmap(data_, bytes_);
    else
      Kokkos::kokkos_free<device::memory_space>(data_);
  }
  unfilled_memory(const unfilled_memory&) = delete;
  unfilled_memory& operator=(const unfilled_memory&) = delete;
  void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

template <class T>
class large_array {
 public:
  explicit large_array(integer size) : memory_(static_cast<std::size_t>(size) * sizeof(T)) {}

  /// Values from element `first` on.
  void put(integer first, const std::vector<double>& values) const {
    Kokkos::deep_copy(part(first, std::ssize(values)), array<T>(values).vector());
  }
  fixture::byte_string bits(integer first, integer size) const {
    const auto copy = fixture::host_copy(part(first, size));
    return {copy.data(), copy.size()};
  }
  lrmoe::vector_view<T, device> part(integer first, integer size) const {
    return lrmoe::vector_view<T, device>(data() + first, static_cast<std::size_t>(size));
  }
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
  T* data() const { return static_cast<T*>(memory_.data()); }
  unfilled_memory memory_;
};

constexpr integer beyond = std::int64_t{1} << 31;

}  // namespace

TEST_CASE("rows whose elements lie beyond 2^31 give the same bits as the first rows", "[experts]") {
  fixture::random draw(5);
  constexpr integer D = fixture::on_host ? 64 : 512, F = fixture::on_host ? 64 : 256, M = 20;
  const double deviation = fixture::on_host ? 0.2 : 0.05;
  const auto x_values = draw.normal(M * D, 1.0, oracle::format::bfloat16);
  const auto d_out_values = draw.normal(M * D, 1.0, oracle::format::bfloat16);
  const array<stored> gate_up(draw.normal(2 * D * 2 * F, deviation, oracle::format::bfloat16));
  const array<stored> down(draw.normal(2 * F * D, deviation, oracle::format::bfloat16));
  const lrmoe::tensor_view<const stored, device> gate_up_view(gate_up.tensor(2, D, 2 * F));
  const lrmoe::tensor_view<const stored, device> down_view(down.tensor(2, F, D));

  const auto run = [&](integer first, bool gathered) {
    const integer rows = first + M;
    const large_array<stored> x(rows * D), d_out(rows * D), pre(rows * 2 * F), h(rows * F),
        y(rows * D), d_pre(rows * 2 * F), scaled_h(rows * F), dx(rows * D);
    const large_array<float> norms(rows);
    x.put(first * D, x_values);
    d_out.put(first * D, d_out_values);
    const auto at = static_cast<index_type>(first);
    const std::vector<index_type> host_offsets{at, at + 7, at + 20};
    const array<index_type> offsets(host_offsets);
    const lrmoe::row_groups<device> groups{offsets.vector(), host_offsets};
    // Row i of a gathered input is matrix(index(i)); rows before the first are not looked at.
    const large_array<index_type> index(rows);
    std::vector<double> places;
    for (integer i = first; i < rows; ++i) places.push_back(static_cast<double>(i));
    index.put(first, places);
    const lrmoe::vector_view<const index_type, device> index_view(
        index.part(0, gathered ? rows : 0));
    const array<float> d_gate_up(std::vector<double>(2 * D * 2 * F, 0.0)),
        d_down(std::vector<double>(2 * F * D, 0.0));

    lrmoe::ledger account;
    const space_type space;
    lrmoe::workspace<device> scratch(space, account);
    backend::expert_operations on(scratch);
    using rows_of = lrmoe::gathered_rows<stored, device>;
    on.gate_up(space, rows_of{x.matrix(rows, D), index_view}, groups, gate_up_view,
               pre.matrix(rows, 2 * F), h.matrix(rows, F), norms.part(0, rows));
    on.down(space, rows_of{h.matrix(rows, F)}, groups, down_view, y.matrix(rows, D));
    lrmoe::swiglu_kept_rows<stored, device> kept;
    kept.x = {x.matrix(rows, D), index_view};
    kept.pre = {pre.matrix(rows, 2 * F), index_view};
    kept.d_out = {d_out.matrix(rows, D), index_view};
    kept.groups = groups;
    on.down_backward(space, kept, down_view, d_pre.matrix(rows, 2 * F), scaled_h.matrix(rows, F),
                     lrmoe::vector_view<float, device>{});
    on.weight_gradient(space, rows_of{scaled_h.matrix(rows, F)}, kept.d_out, groups,
                       d_down.tensor(2, F, D), lrmoe::gradient_update::add);
    on.weight_gradient(space, kept.x, rows_of{d_pre.matrix(rows, 2 * F)}, groups,
                       d_gate_up.tensor(2, D, 2 * F), lrmoe::gradient_update::add);
    on.gate_up_backward(space, rows_of{d_pre.matrix(rows, 2 * F)}, groups, gate_up_view,
                        dx.matrix(rows, D));
    // Two tokens of which each sums two far rows.
    const array<index_type> row_of_pair(std::vector<index_type>{at, at + 19, at + 3, -1});
    const array<stored> out(2 * D);
    lrmoe::combine(space, lrmoe::matrix_view<const stored, device>(y.matrix(rows, D)),
                   lrmoe::vector_view<const index_type, device>(row_of_pair.vector()),
                   lrmoe::matrix_view<const float, device>{},
                   lrmoe::matrix_view<const stored, device>{}, out.matrix(2, D));
    space.fence("lrmoe_test::large_offsets");
    for (const double value : out.values()) REQUIRE(std::isfinite(value));
    CHECK(out.elements()[0].bits != 0);
    return std::vector{pre.bits(first * 2 * F, M * 2 * F),
                       h.bits(first * F, M * F),
                       norms.bits(first, M),
                       y.bits(first * D, M * D),
                       d_pre.bits(first * 2 * F, M * 2 * F),
                       scaled_h.bits(first * F, M * F),
                       dx.bits(first * D, M * D),
                       d_gate_up.bits(),
                       d_down.bits(),
                       out.bits()};
  };
  const bool gathered = GENERATE(false, true);
  const auto near = run(0, gathered);
  CHECK(run(beyond / D + 3, gathered) == near);
}

TEST_CASE("experts whose weights lie beyond 2^31 elements train as the first ones do",
          "[experts]") {
  fixture::random draw(6);
  constexpr integer T = 30, D = 64, F = fixture::on_host ? 64 : 512;
  problem p =
      random_problem(draw, {T, D, F, 2, 1, 0}, oracle::format::bfloat16, routing_kind::given);
  using policies = policies_of<lrmoe::given_routing>;
  policies choice;
  choice.estimator = lrmoe::top{};

  const auto run = [&](integer E) {
    // Expert 1 of the problem becomes the last of E experts; all between are empty.
    const integer wide = D * 2 * F, narrow = F * D;
    const large_array<stored> gate_up(E * wide), down(E * narrow);
    const large_array<float> d_gate_up(E * wide), d_down(E * narrow);
    for (const integer e : {integer{0}, integer{1}}) {
      const integer to = e == 0 ? 0 : E - 1;
      gate_up.put(to * wide,
                  {p.in.gate_up.begin() + e * wide, p.in.gate_up.begin() + (e + 1) * wide});
      down.put(to * narrow, {p.in.down.begin() + e * narrow, p.in.down.begin() + (e + 1) * narrow});
      Kokkos::deep_copy(d_gate_up.part(to * wide, wide), 0.0F);
      Kokkos::deep_copy(d_down.part(to * narrow, narrow), 0.0F);
    }
    problem moved = p;
    for (auto& e : moved.in.experts) e = e == 0 ? 0 : static_cast<std::int32_t>(E - 1);
    const call<stored> views(moved);
    lrmoe::expert_weights<stored, device> weights;
    weights.gate_up = gate_up.tensor(E, D, 2 * F);
    weights.down = down.tensor(E, F, D);
    lrmoe::expert_gradients<float, device> gradients;
    gradients.gate_up = d_gate_up.tensor(E, D, 2 * F);
    gradients.down = d_down.tensor(E, F, D);
    lrmoe::context<backend> context;
    layer_of<policies, stored> layer(context, {D, F, E, 1, 0}, choice);
    layer.forward(0, views.x_view(), views.router_input<lrmoe::given_routing>(), weights,
                  views.out_view());
    layer.backward(views.d_out_view(), weights, views.dx_view(),
                   views.router_gradient<lrmoe::given_routing>(), gradients);
    std::vector<fixture::byte_string> result{views.out.bits(), views.dx.bits(),
                                             views.d_given.bits()};
    for (const integer e : {integer{0}, E - 1}) {
      result.push_back(d_gate_up.bits(e * wide, wide));
      result.push_back(d_down.bits(e * narrow, narrow));
    }
    return result;
  };
  CHECK(run(beyond / (F * D) + 3) == run(2));
}
