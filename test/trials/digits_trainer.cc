#include "test/trials/digits_trainer.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <thread>

#include "trainer/loop/gradient_weight.h"

namespace psd::trials {
namespace {

constexpr uint64_t kEpochs = 1'000'000;   // never reached
constexpr uint32_t kMostOfBatchSize = 8;  // as in `psd-trainer train --batch-size auto`

}  // namespace

Result<std::unique_ptr<Client>> connectTo(const Setting& setting) {
  ClientOptions options;
  options.servers = {setting.server};
  return Client::connect(options);
}

DigitsTrainer::DigitsTrainer(const Setting& setting, Rank rank)
    : setting_(setting),
      rank_(rank),
      network_(setting.hidden),
      random_(setting.seed * 1000 + rank.value),
      parameters_(network_.elementCount()),
      gradient_(network_.elementCount()) {}

Status DigitsTrainer::join(uint32_t worldSize) {
  PSD_ASSIGN_OR_RETURN(client_, connectTo(setting_));
  const std::vector<float> initial = network_.initialValues(setting_.seed);
  return client_->join({rank_, worldSize}, network_.spec(), [&] { return std::span<const float>(initial); })
      .status();
}

Status DigitsTrainer::pull() {
  PSD_ASSIGN_OR_RETURN(pulled_, client_->pull(parameters_).wait());
  return {};
}

Status DigitsTrainer::drawSamples() {
  std::uniform_int_distribution<uint32_t> sample(0, static_cast<uint32_t>(setting_.trainSamples) - 1);
  std::vector<uint32_t> indices(setting_.batchSize);
  for (uint32_t& index : indices) index = sample(random_);
  return setting_.train->fill(indices, batch_);
}

void DigitsTrainer::shuffle(uint64_t epoch) {
  order_.resize(setting_.trainSamples);
  std::iota(order_.begin(), order_.end(), 0u);
  std::mt19937_64 random(setting_.seed * 1000 + epoch);  // the same for all trainers
  std::shuffle(order_.begin(), order_.end(), random);
}

Status DigitsTrainer::takeDealtSamples() {
  const auto nominal = static_cast<uint32_t>(setting_.batchSize);
  const uint64_t epoch = assigned_.epoch;
  PSD_ASSIGN_OR_RETURN(assigned_, client_->takeSamples({.step = Step{steps_ + 1},
                                                        .count = kMostOfBatchSize * nominal,
                                                        .samples = setting_.trainSamples,
                                                        .epochs = kEpochs,
                                                        .wait = true,
                                                        .nominal = nominal,
                                                        .sampleSeconds = pace_.sampleSeconds()}));
  if (assigned_.what != AssignedSamples::What::range) return {ErrorCode::notReady, "no samples are left"};
  if (order_.empty() || assigned_.epoch != epoch) shuffle(assigned_.epoch);
  return setting_.train->fill(std::span(order_).subspan(assigned_.begin, assigned_.count), batch_);
}

void DigitsTrainer::compute(std::chrono::milliseconds time) {
  const auto begin = std::chrono::steady_clock::now();
  network_.gradient(parameters_, batch_, gradient_);
  const double share = static_cast<double>(batch_.size()) / static_cast<double>(setting_.batchSize);
  std::this_thread::sleep_for(time * share);
  pace_.add(static_cast<uint32_t>(batch_.size()),
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  scaleGradient(gradient_, {0, gradient_.size()}, assigned_.scaledByTrainer, static_cast<float>(share));
}

void DigitsTrainer::makeGarbage(double scale) {
  std::normal_distribution<double> normal(0, scale);
  for (float& value : gradient_) value = static_cast<float>(normal(random_));
}

Status DigitsTrainer::push() {
  const auto samples = static_cast<uint32_t>(batch_.size());
  samples_ += samples;
  return client_->push(Step{++steps_}, gradient_, samples, pulled_.versions).wait().status();
}

}  // namespace psd::trials
