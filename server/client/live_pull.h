#pragma once

#include <kj/async.h>

#include "common/status/status.h"
#include "schema/psd.capnp.h"
#include "server/client/live_model.h"

namespace psd {

/// Pulls all dense parameters and the buffers of a daemon, in slices.
kj::Promise<Result<LiveModel>> pullLiveModel(schema::Reading::Client reading);

}  // namespace psd
