#include <limits>

#include <lrmoe/exchange/pieces.hpp>

#include "catch.hpp"
#include "random.hpp"

namespace {

using std::int64_t;

/// The pieces lie one behind the other, fit MPI's counts, and make up the message.
void check_pieces(int64_t bytes) {
  int64_t end = 0, wrong = 0;
  for (int64_t i = 0; i < lrmoe::mpi::num_pieces(bytes); ++i) {
    const auto [offset, size] = lrmoe::mpi::piece_of(bytes, i);
    wrong += offset != end || size < 1 || size > 1 << 30;
    end += size;
  }
  INFO(bytes << " bytes");
  CHECK(wrong == 0);
  CHECK(end == bytes);
  CHECK(lrmoe::mpi::num_pieces(bytes) == (bytes + (int64_t{1} << 30) - 1) >> 30);
}

}  // namespace

TEST_CASE("messages beyond 2^31 rows are cut into pieces that MPI can count", "[exchange]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  fixture::random draw(seed);
  constexpr int64_t rows = (int64_t{1} << 31) + 5;
  for (const int64_t row_bytes : {1, 2, 3, 4, 4096, 8192}) check_pieces(rows * row_bytes);
  for (const int64_t bytes : {0, 1, 7, (1 << 30) - 1, 1 << 30, (1 << 30) + 1}) check_pieces(bytes);
  for (int i = 0; i < 50; ++i) check_pieces(draw.integer(0, int64_t{1} << 44));
  // More than any machine holds: the arithmetic itself must not overflow.
  constexpr int64_t largest = std::numeric_limits<int64_t>::max();
  const int64_t last = lrmoe::mpi::num_pieces(largest) - 1;
  const auto [offset, size] = lrmoe::mpi::piece_of(largest, last);
  CHECK(offset + size == largest);
}
