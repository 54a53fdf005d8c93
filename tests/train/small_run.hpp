// A short run of the trainer on a small text.
#pragma once

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "temporary_folder.hpp"
#include "trainer.hpp"

namespace train_test {

using namespace train;

/// A text with something to learn: few words, in random order.
inline std::string small_text() {
  const std::vector<std::string> words{"alpha ", "beta ", "gamma ", "delta ", "epsilon "};
  std::string text;
  for (std::uint64_t i = 0; text.size() < 20000; ++i) text += words[random_below(5, 1, 2, i)];
  return text;
}

struct small_run {
  temporary_folder place;
  options o;
  place_maker layers = nullptr;  // where MoE layers compute; nullptr: where o.backend says

  explicit small_run(train::method method = method::exact) {
    use_one_blas_thread();
    set_content(place.path + "/text", small_text());
    o.data = {place.path + "/text"};
    o.output = place.path + "/run";
    o.method = method;
    o.steps = 12;
    o.batch = 4;
    o.context = 16;
    o.width = 16;
    o.expert_width = 8;
    o.experts = 6;
    o.top_k = 2;
    o.validate_every = 5;
    o.validation_sequences = 10;
    o.learning_rate = 0.02;
    o.quiet = true;
  }

  /// On o.ranks ranks of this process.
  bool run(std::int64_t until = 1000) const {
    const place_maker where = layers != nullptr ? layers : place_of(o.backend);
    if (o.ranks == 1) return trainer(o, lrmoe::single_rank{}, where).run(until);
    bool complete = false;
    lrmoe::logical::world world(static_cast<int>(o.ranks));
    world.run([&](lrmoe::logical::communicator& joined) {
      const bool first = joined.rank() == 0;
      const bool finished = trainer(o, std::move(joined), where).run(until);
      if (first) complete = finished;
    });
    return complete;
  }

  std::vector<json> log() const {
    std::vector<json> lines;
    std::istringstream stream(content_of(o.output + "/log.jsonl"));
    for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
    return lines;
  }

  /// What training did, without times.
  std::vector<double> trajectory() const {
    std::vector<double> values;
    for (const json& line : log()) {
      if (line["type"] == "step")
        for (const char* key : {"loss", "gradient_norm", "kept_fraction", "noise_ratio"})
          values.push_back(line[key]);
      if (line["type"] == "validation")
        for (const char* key : {"val_loss", "val_loss_smoothed"}) values.push_back(line[key]);
    }
    return values;
  }

  /// One number of every step.
  std::vector<double> of_steps(const char* key) const {
    std::vector<double> values;
    for (const json& line : log())
      if (line["type"] == "step") values.push_back(line[key]);
    return values;
  }

  /// The checkpoint without its description, which has times: header's sizes and the payload.
  std::string tensors() const {
    const std::string content = content_of(o.output + "/checkpoint.bin");
    std::uint32_t description = 0;
    std::memcpy(&description, content.data() + 12, sizeof description);
    return content.substr(32 + description);
  }
};

}  // namespace train_test
