#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/types/model_layout.h"
#include "test/support/arena_values.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "trainer/client/api/client.h"

namespace psd::testing {

inline const ModelSpec kModel{"net", {{"fc.weight", DType::f32, {40, 50}}, {"fc.bias", DType::f32, {50}}}};

/// A daemon's configuration.
inline nlohmann::ordered_json configOf(const nlohmann::ordered_json& policy, double lr = 1) {
  return {{"policy", policy}, {"shards", 3}, {"threads", 2}, {"optimizer", {{"type", "sgd"}, {"lr", lr}}}};
}

/// A joined trainer of kModel; the first one initializes it with zeros.
inline std::unique_ptr<Client> joined(const std::string& address, uint32_t rank, uint32_t worldSize,
                                      Transport transport = Transport::rpc) {
  ClientOptions options;
  options.servers = {address};
  options.chunkBytes = 4 << 10;
  options.transport = transport;
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  const std::vector<float> zeros(ModelLayout(kModel).totalElements());
  PSD_REQUIRE_OK(
      (*client)->join({Rank{rank}, worldSize}, kModel, [&] { return std::span<const float>(zeros); }));
  return std::move(*client);
}

/// A gradient that is `value` in each element of the model, and zero in the padding.
inline std::vector<float> gradientOf(float value) { return everyParameter(kModel, value); }

/// The value of every element of the tensor; fails if they differ.
inline float valueOf(Client& client, size_t tensor = 0) {
  const ModelLayout layout(kModel);
  std::vector<float> values(layout.totalElements());
  PSD_REQUIRE_OK(client.pull(values).wait());
  const TensorPlace& place = layout.places()[tensor];
  const auto own = std::span<const float>(values).subspan(place.begin, place.count);
  const float first = own.front();
  CHECK(std::all_of(own.begin(), own.end(), [&](float value) { return value == first; }));
  return first;
}

}  // namespace psd::testing
