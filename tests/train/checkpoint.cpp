// Checkpoints: what is written is read; what is damaged or belongs to another run is refused.
#include "checkpoint.hpp"

#include <filesystem>
#include <fstream>
#include <string>

#include "catch.hpp"
#include "finite_difference.hpp"
#include "temporary_folder.hpp"

using namespace train;
using namespace train_test;

namespace {

void make_parameters(parameter_list& parameters) {
  parameters.add_random("weights", 1000, 1.0);
  parameters.add_ones("gain", 3);
}

std::string refusal(const std::string& path, const json& settings, parameter_list& parameters) {
  expert_states experts(2, std::vector<float>(30));
  return message_of([&] { checkpoint::read(path, settings, parameters, experts); });
}

const json settings{{"width", 64}, {"keep", 0.1}};

}  // namespace

TEST_CASE("a checkpoint returns tensors and progress bit by bit", "[train]") {
  const temporary_folder place;
  const std::string path = place.path + "/checkpoint.bin";
  fixture::random random(fixture::fresh_seed());
  parameter_list written(1), read(2);
  make_parameters(written);
  make_parameters(read);
  for (const parameter& p : written)
    for (const vector& part : {p.value, p.first_moment, p.second_moment})
      fill_normal(part, 1.0, random);
  const json progress{{"step", 12}, {"seconds", 0.1 + 0.2}};
  expert_states experts{{1.0f, 2.0f, 3.0f}, {4.0f}}, experts_read{{0, 0, 0}, {0}};
  checkpoint::write(path, settings, progress, written, experts);
  CHECK(checkpoint::read(path, settings, read, experts_read) == progress);
  CHECK(experts_read == experts);
  auto other = read.begin();
  for (const parameter& p : written) {
    for (std::int64_t i = 0; i < p.size(); ++i) {
      REQUIRE(other->value(i) == p.value(i));
      REQUIRE(other->first_moment(i) == p.first_moment(i));
      REQUIRE(other->second_moment(i) == p.second_moment(i));
    }
    ++other;
  }
  // Nothing else is left in the folder.
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(place.path))
    ++files;
  CHECK(files == 1);
}

TEST_CASE("a damaged or foreign checkpoint is refused with a reason and changes nothing",
          "[train]") {
  const temporary_folder place;
  const std::string path = place.path + "/checkpoint.bin";
  parameter_list parameters(1);
  make_parameters(parameters);
  checkpoint::write(path, settings, {{"step", 1}}, parameters,
                    expert_states(2, std::vector<float>(30)));
  const std::string good = content_of(path);
  Kokkos::deep_copy(parameters.begin()->value, 7.0f);

  CHECK_NAMES(refusal(place.path + "/missing", settings, parameters), "No such file");
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{31}, std::size_t{100}, good.size() - 1}) {
    set_content(path, good.substr(0, size));
    CHECK_NAMES(refusal(path, settings, parameters), "truncated");
  }
  set_content(path, good + "x");
  CHECK_NAMES(refusal(path, settings, parameters), "damaged");
  for (const std::size_t position : {std::size_t{40}, good.size() / 2, good.size() - 1}) {
    std::string bad = good;
    bad[position] = static_cast<char>(bad[position] ^ 0x10);
    set_content(path, bad);
    CHECK_NAMES(refusal(path, settings, parameters), "checksum");
  }
  std::string foreign = good;
  foreign[0] = 'X';
  set_content(path, foreign);
  CHECK_NAMES(refusal(path, settings, parameters), "not a checkpoint");
  std::string newer = good;
  newer[8] = 9;
  set_content(path, newer);
  CHECK_NAMES(refusal(path, settings, parameters), "version 9");
  set_content(path, good);
  CHECK_NAMES(refusal(path, {{"width", 128}, {"keep", 0.1}}, parameters), "width = 64", "128");
  parameter_list larger(1);
  make_parameters(larger);
  larger.add_ones("more", 2);
  CHECK_NAMES(refusal(path, settings, larger), "other tensors");

  for (int i = 0; i < 1000; ++i) REQUIRE(parameters.begin()->value(i) == 7.0f);
  CHECK(refusal(path, settings, parameters) == "no error");
  CHECK(parameters.begin()->value(0) != 7.0f);
}

TEST_CASE("a checkpoint that cannot be written leaves the old one", "[train]") {
  const temporary_folder place;
  const std::string path = place.path + "/checkpoint.bin";
  parameter_list parameters(1);
  make_parameters(parameters);
  checkpoint::write(path, settings, {{"step", 1}}, parameters,
                    expert_states(2, std::vector<float>(30)));
  const std::string before = content_of(path);
  // A folder in the place of the temporary file makes its creation fail, for root too.
  std::filesystem::create_directory(path + ".tmp");
  CHECK_THROWS_AS(checkpoint::write(path, settings, {{"step", 2}}, parameters), train::error);
  CHECK(content_of(path) == before);
}
