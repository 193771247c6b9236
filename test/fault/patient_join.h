#pragma once

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "trainer/client/client.h"

namespace psd::testing {

/// A client that has joined, `initial` being the first values where it brings them. The daemon may take a
/// while to notice that the one before it, of the same rank, is dead: for so long it tries.
inline Result<std::unique_ptr<Client>> joinPatiently(const ClientOptions& options,
                                                     const Membership& membership, const ModelSpec& model,
                                                     const std::vector<float>& initial,
                                                     std::chrono::seconds patience) {
  for (const auto deadline = std::chrono::steady_clock::now() + patience;;) {
    PSD_ASSIGN_OR_RETURN(auto client, Client::connect(options));
    const auto joined = client->join(membership, model, [&] { return std::span<const float>(initial); });
    if (joined.ok()) return client;
    const bool again = joined.error().code == ErrorCode::rankTaken;
    if (!again || std::chrono::steady_clock::now() > deadline) return joined.error();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace psd::testing
