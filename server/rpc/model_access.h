#pragma once

#include "schema/psd.capnp.h"
#include "server/policy/served_model.h"
#include "server/rpc/connection.h"

namespace psd {

/// Tells a peer what it must know before it pulls or pushes, and what shared memory it may use, or why none.
void writeAccess(const ServedModel& model, Connection& connection, schema::ModelAccess::Builder out);

}  // namespace psd
