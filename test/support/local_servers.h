#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "test/support/local_server.h"
#include "test/support/temp_dir.h"

namespace psd::testing {

/// Daemons in this process that serve a model together, or one daemon. Owned by one thread.
class LocalServers {
 public:
  /// `config`: of all of them, as LocalServer takes it; with durability each daemon has its own folder.
  LocalServers(const nlohmann::ordered_json& config, size_t count) {
    nlohmann::ordered_json own = config;
    for (size_t i = 0; count > 1 && i < count; i++) {
      own["daemons"].push_back("unix://" + folder_.file("psd-" + std::to_string(i) + ".sock"));
    }
    for (size_t i = 0; i < count; i++) {
      if (count > 1) own["index"] = i;
      if (own.contains("durability")) own["durability"]["path"] = folder_.file("saved-" + std::to_string(i));
      servers_.push_back(std::make_unique<LocalServer>(own));
    }
  }

  const std::vector<std::unique_ptr<LocalServer>>& all() const { return servers_; }
  const LocalServer& lead() const { return *servers_.front(); }
  const LocalServer& last() const { return *servers_.back(); }
  /// Of the lead daemon.
  nlohmann::ordered_json status() const { return lead().status(); }
  nlohmann::ordered_json statusWhen(
      const std::function<bool(const nlohmann::ordered_json&)>& condition) const {
    return lead().statusWhen(condition);
  }

 private:
  TempDir folder_;  // for their sockets and what they save
  std::vector<std::unique_ptr<LocalServer>> servers_;
};

}  // namespace psd::testing
