#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>

#include "common/auth/credentials.h"
#include "trainer/client/api/client.h"

namespace psd::python {

/// A duration from Python; throws if it is not from 0 to 1e9 seconds. With the GIL.
std::chrono::milliseconds milliseconds(const char* name, double seconds);

/// The arguments that all clients have.
struct ConnectionArguments {
  std::vector<std::string> servers;
  double connectTimeout = 0, retryTimeout = 0;
  nanobind::object onEvent;  ///< None: nothing is called
  std::optional<std::string> token;
  CredentialFlags files;
};

/// The options for these arguments; throws if they are invalid, and warns of a token that is sent in the
/// clear. With the GIL.
ClientOptions optionsOf(ConnectionArguments arguments);

}  // namespace psd::python
