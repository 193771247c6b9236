#include "trainer/python/client_arguments.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "trainer/python/errors.h"
#include "trainer/python/shared_client.h"

namespace nb = nanobind;

namespace psd::python {
namespace {

/// Wraps `onEvent(what, line)` so that it can be called and destroyed on any thread.
std::function<void(const ClientEvent&)> eventCallback(nb::object onEvent) {
  const std::shared_ptr<nb::object> callable(new nb::object(std::move(onEvent)), [](nb::object* object) {
    if (pythonIsFinalizing()) return;
    const nb::gil_scoped_acquire held;
    delete object;
  });
  return [callable](const ClientEvent& event) {
    if (pythonIsFinalizing()) return;
    const nb::gil_scoped_acquire held;
    const nb::error_scope pending;  // of a signal handler
    constexpr const char* kNames[] = {"waits", "broke", "back"};
    try {
      (*callable)(kNames[static_cast<size_t>(event.what)], event.line);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("psd's on_event");
    }
  };
}

/// Replaces the flags that an error of credentials names by Python's arguments.
Status withArgumentNames(const Status& status) {
  if (status.ok()) return status;
  std::string message = status.message();
  for (const std::string flag : {"--token-file", "--tls-ca", "--tls-cert", "--tls-key"}) {
    std::string argument = flag.substr(2);
    std::ranges::replace(argument, '-', '_');
    for (size_t at = message.find(flag); at != std::string::npos; at = message.find(flag, at)) {
      message.replace(at, flag.size(), argument);
    }
  }
  return {status.error().code, message};
}

}  // namespace

std::chrono::milliseconds milliseconds(const char* name, double seconds) {
  constexpr double kMost = 1e9;
  if (!(seconds >= 0 && seconds <= kMost)) {
    raise({ErrorCode::invalidArgument,
           fmt::format("{} is from 0 to {:.0f} seconds, not {}", name, kMost, seconds)});
  }
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

ClientOptions optionsOf(ConnectionArguments arguments) {
  ClientOptions options;
  arguments.files.token = std::move(arguments.token);
  auto credentials = readCredentials(arguments.files, std::getenv);
  check(withArgumentNames(credentials.status()));
  options.token = std::move(credentials->token);
  options.tls = std::move(credentials->tls);
  if (const std::string warning = tokenInTheClear(options.token, arguments.servers); !warning.empty()) {
    nb::module_::import_("warnings").attr("warn")(warning);
  }
  options.servers = std::move(arguments.servers);
  options.program = "psd for Python " PSD_VERSION;
  options.connectTimeout = milliseconds("connect_timeout", arguments.connectTimeout);
  options.retryTimeout = milliseconds("retry_timeout", arguments.retryTimeout);
  if (!arguments.onEvent.is_none()) options.onEvent = eventCallback(std::move(arguments.onEvent));
  return options;
}

}  // namespace psd::python
