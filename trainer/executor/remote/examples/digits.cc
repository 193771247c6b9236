// Trains the mlp of a psd-executor on made-up digits:  digits ADDRESS RANK WORLD_SIZE

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "trainer/executor/remote/loss_list.h"
#include "trainer/executor/remote/remote_steps.h"

namespace {

constexpr uint64_t kSamples = 32, kSide = 28, kPixels = kSide * kSide;

/// Images with noise and one bright row, which is the label.
void draw(std::mt19937& random, psd::NamedTensor& images, psd::NamedTensor& labels) {
  images = {"image", psd::ElementType::f32, {kSamples, 1, kSide, kSide}, {}};
  labels = {"label", psd::ElementType::i64, {kSamples}, {}};
  images.bytes.resize(kSamples * kPixels * sizeof(float));
  labels.bytes.resize(kSamples * sizeof(int64_t));
  std::uniform_real_distribution<float> noise(0, 0.3f);
  std::generate_n(images.values<float>().begin(), kSamples * kPixels, [&] { return noise(random); });
  for (uint64_t i = 0; i < kSamples; i++) {
    const uint64_t label = random() % 10;
    labels.values<int64_t>()[i] = static_cast<int64_t>(label);
    std::fill_n(images.values<float>().begin() + static_cast<long>(i * kPixels + label * kSide), kSide, 1.f);
  }
}

psd::Status train(const char* address, const psd::Membership& membership) {
  psd::RemoteStepsOptions options{.executor = address, .program = "digits"};
  options.retryTimeout = std::chrono::seconds(60);
  PSD_ASSIGN_OR_RETURN(auto steps, psd::RemoteSteps::connect(options));
  if (!steps->module().loss) return {psd::ErrorCode::protocolMismatch, "a loss of a newer psd"};
  const psd::LossSpec loss = *steps->module().loss;
  PSD_RETURN_IF_ERROR(steps->join(membership).status());
  std::mt19937 random(membership.rank.value);
  psd::NamedTensor images, labels;
  for (uint64_t step = 1; step <= 200; step++) {
    draw(random, images, labels);
    PSD_ASSIGN_OR_RETURN(const double lost, steps->forward({images}, [&](const auto& outputs) {
      return psd::computeLoss(loss, outputs, labels);
    }));
    PSD_RETURN_IF_ERROR(steps->step(psd::Step{step}, kSamples).status());
    if (step % 50 == 0) std::printf("step %d: loss %.3f\n", static_cast<int>(step), lost);
  }
  draw(random, images, labels);
  PSD_ASSIGN_OR_RETURN(const auto outputs, steps->outputs({images}));
  PSD_ASSIGN_OR_RETURN(const psd::Score score, psd::scoreOutputs(loss, outputs, labels));
  std::printf("accuracy %.2f\n", score.value("accuracy"));
  return steps->leave();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const psd::Rank rank{static_cast<uint32_t>(std::atoi(argv[2]))};
  const psd::Status status = train(argv[1], {rank, static_cast<uint32_t>(std::atoi(argv[3]))});
  if (!status.ok()) std::fprintf(stderr, "digits: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
