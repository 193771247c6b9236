#pragma once

#include <kj/compat/http.h>

namespace psd {

/// Tells kj-http, which asks as an answer begins, whether its connection ends with it. Belongs to an event
/// loop.
class LastAnswer final : public kj::HttpServerCallbacks {
 public:
  bool shouldClose() override { return begins_; }

  /// Begins an answer with `send()`, the connection's last one where `last`.
  template <class Send>
  auto begin(bool last, Send send) {
    begins_ = last;
    KJ_DEFER(begins_ = false);
    return send();
  }

 private:
  bool begins_ = false;
};

}  // namespace psd
