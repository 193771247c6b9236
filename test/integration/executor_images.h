#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "test/integration/executor_calls.h"
#include "test/integration/local_executor.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "trainer/client/api/client.h"
#include "trainer/dataset/synthetic.h"
#include "trainer/executor/remote/executor_connection.h"
#include "trainer/model/model_list.h"

// For trainers on images, whose model is mlp.

namespace psd::testing {

inline constexpr uint32_t kSamples = 32;  // a power of two: 1 / kSamples is exact

inline std::unique_ptr<ExecutorConnection> joined(const LocalExecutor& executor, uint32_t rank = 0,
                                                  uint32_t worldSize = 1, uint64_t incarnation = 0) {
  auto trainer = connectTo(executor);
  PSD_REQUIRE_OK(trainer->join({Rank{rank}, worldSize}, incarnation != 0 ? incarnation : rank + 1));
  return trainer;
}

/// A fixed batch of the synthetic images.
inline Batch makeBatch(uint32_t first = 0) {
  static const auto data = makeSynthetic(4 * kSamples, Split::train, 3);
  std::vector<uint32_t> samples(kSamples);
  std::iota(samples.begin(), samples.end(), first);
  Batch batch;
  static_cast<void>(data->fill(samples, batch));  // data in memory is always there
  return batch;
}

inline std::vector<NamedTensor> imagesOf(const Batch& batch) {
  const ColumnSpec image{"image", ElementType::f32, {1, 28, 28}, 0};
  return tensorsOf(batch, std::vector<ColumnSpec>{image});
}

inline NamedTensor labelsOf(const Batch& batch) {
  const LossSpec loss;
  return tensorsOf(batch, std::vector<ColumnSpec>{loss.target}).front();
}

/// The gradient of the mean negative log-likelihood with respect to log-probabilities, as LibTorch computes
/// it.
inline std::vector<NamedTensor> likelihoodGradient(const std::vector<NamedTensor>& outputs,
                                                   const Batch& batch) {
  NamedTensor gradient = outputs.at(0);
  std::ranges::fill(gradient.values<float>(), 0.0f);
  const auto labels = batch.values<int64_t>("label");
  const size_t classes = gradient.shape.at(1);
  for (size_t i = 0; i < labels.size(); i++) {
    gradient.values<float>()[i * classes + static_cast<size_t>(labels[i])] = -1.0f / kSamples;
  }
  return {gradient};
}

/// A local model with the daemon's current parameters.
inline std::unique_ptr<Model> localCopy(const LocalServer& server) {
  auto choice = chooseModel("mlp");
  PSD_REQUIRE_OK(choice);
  auto model = makeModel(*choice, {});
  PSD_REQUIRE_OK(model);
  ClientOptions options;
  options.servers = {server.address()};
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  PSD_REQUIRE_OK((*client)->observe((*model)->spec()));
  PSD_REQUIRE_OK((*client)->pull((*model)->parameters()).wait());
  return *std::move(model);
}

inline void requireRefused(const Status& status, ErrorCode code, const std::string& words) {
  INFO(status.message());
  REQUIRE(!status.ok());
  CHECK(status.error().code == code);
  CHECK(status.message().find(words) != std::string::npos);
}

}  // namespace psd::testing
