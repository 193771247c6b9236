#pragma once

#include "common/status/status.h"
#include "common/wire/convert.h"

namespace psd {

/// Answers a call with the status that a promise resolves to: `promise.then(answering(context))`. Runs on the
/// loop of the call's connection.
template <class Context>
auto answering(Context context) {
  return [context](const Status& status) mutable {
    wire::writeStatus(status, context.getResults().initStatus());
  };
}

}  // namespace psd
