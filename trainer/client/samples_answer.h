#pragma once

#include "schema/psd.capnp.h"
#include "trainer/client/api/client.h"
#include "trainer/client/transport/session_terms.h"

namespace psd {

/// Parses the daemon's answer to a request for samples. `sized`: the daemon was asked to choose the count.
Result<AssignedSamples> readSamples(schema::SamplesResult::Reader answer, const SessionTerms& terms,
                                    bool sized);

}  // namespace psd
