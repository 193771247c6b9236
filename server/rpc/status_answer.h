#pragma once

#include "common/status/status.h"
#include "common/wire/convert.h"

namespace psd {

/// Writes the status that something comes to as a call's answer: `promise.then(answering(context))`. On the
/// loop of the call's connection.
template <class Context>
auto answering(Context context) {
  return [context](const Status& status) mutable {
    wire::writeStatus(status, context.getResults().initStatus());
  };
}

}  // namespace psd
