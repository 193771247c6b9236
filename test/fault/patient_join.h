#pragma once

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "trainer/client/api/client.h"

namespace psd::testing {

/// Returns a joined client; `initial` holds the values if it is the initializer. Retries while the daemon has
/// not yet noticed that the previous process of this rank is dead.
inline Result<std::unique_ptr<Client>> joinWithRetry(const ClientOptions& options,
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
