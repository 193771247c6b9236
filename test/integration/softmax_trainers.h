#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "test/unit/trainer/model/softmax_model.h"
#include "trainer/client/api/client.h"
#include "trainer/dataset/synthetic.h"
#include "trainer/loop/training_loop.h"

namespace psd::testing {

/// A client of the daemon. Its slices are small, so that each shard has several.
inline std::unique_ptr<Client> clientOfSmallSlices(const LocalServer& server) {
  ClientOptions options;
  options.servers = {server.address()};
  options.chunkBytes = 4 << 10;
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  return std::move(*client);
}

/// A joined trainer of psd-trainer with a small model. Owned by one thread.
struct SoftmaxTrainer {
  SoftmaxTrainer(const LocalServer& server, uint32_t samples, const LoopOptions& options)
      : client(clientOfSmallSlices(server)),
        data(makeSynthetic(samples, Split::train, 1)),
        loop(*client, model, *data, options) {
    auto joined = loop.join();
    PSD_REQUIRE_OK(joined);
    info = *joined;
  }
  std::unique_ptr<Client> client;
  SoftmaxModel model;
  std::unique_ptr<Dataset> data;
  TrainingLoop loop;
  JoinInfo info;
};

/// Runs the trainers' steps, each on a thread of its own, until they leave. Returns the daemon's parameters
/// after that.
inline std::vector<float> trainTogether(const std::vector<std::unique_ptr<SoftmaxTrainer>>& trainers) {
  std::vector<Status> ends(trainers.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < trainers.size(); i++) {
    threads.emplace_back([&, i] { ends[i] = trainers[i]->loop.run({}, [] { return false; }).status(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& end : ends) PSD_REQUIRE_OK(end);
  std::vector<float> values(trainers.front()->model.parameters().size());
  PSD_REQUIRE_OK(trainers.front()->client->pull(values).wait());
  for (const auto& trainer : trainers) PSD_REQUIRE_OK(trainer->client->leave());
  return values;
}

}  // namespace psd::testing
