#pragma once

#include "schema/psd.capnp.h"
#include "trainer/client/client.h"
#include "trainer/client/transport/session_terms.h"

namespace psd {

/// What the daemon answered to a trainer that asked for samples. `sized`: it was asked to choose how many.
Result<DealtSamples> readSamples(schema::SamplesResult::Reader answer, const SessionTerms& terms, bool sized);

}  // namespace psd
