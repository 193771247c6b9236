#pragma once

#include <kj/compat/http.h>

namespace psd {

/// Decides for kj-http, which asks at the start of an answer, whether the connection closes after it. Belongs
/// to an event loop.
class LastAnswer final : public kj::HttpServerCallbacks {
 public:
  bool shouldClose() override { return closesAfter_; }

  /// Starts an answer with `send()`; `last`: it is the connection's last one.
  template <class Send>
  auto begin(bool last, Send send) {
    closesAfter_ = last;
    KJ_DEFER(closesAfter_ = false);
    return send();
  }

 private:
  bool closesAfter_ = false;
};

}  // namespace psd
