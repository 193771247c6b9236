#include "server/replica/document_requests.h"

#include <algorithm>

namespace psd {

void DocumentRequests::swap(const ClusterView& wanted, ReplicaActions& out) {
  swapping_ = true;
  expected_ = known_.revision;
  out.push_back(replica_action::Swap{known_.revision, wanted});
}

void DocumentRequests::read(ReplicaActions& out) {
  if (reading_) return;
  reading_ = true;
  readDue_.reset();
  out.push_back(replica_action::Read{});
}

void DocumentRequests::readLater(TimePoint now) {
  if (reading_ || readDue_) return;
  readDue_ = now + pause_;
  pause_ = std::min(2 * pause_, rules_.alone);
}

void DocumentRequests::tick(TimePoint now, ReplicaActions& out) {
  if (readDue_ && now >= *readDue_) read(out);
}

void DocumentRequests::swapUnknown(ReplicaActions& out) {
  if (!swapping_) return;
  swapping_ = false;
  uncertain_ = true;
  lost_ = expected_;
  read(out);
}

void DocumentRequests::readUnknown(TimePoint now) {
  reading_ = false;
  readLater(now);
}

bool DocumentRequests::learn(const ClusterView& view, TimePoint now) {
  uncertain_ = false;
  if (view.revision < known_.revision) return false;
  if (view.revision > known_.revision) pause_ = rules_.beat;
  known_ = view;
  if (open(lost_)) readLater(now);
  return true;
}

std::string DocumentRequests::checkInvariants() const {
  if (swapping_ && uncertain_) return "a swap was sent while the outcome of another one is unknown";
  if ((swapping_ && !expected_) || (uncertain_ && !lost_)) return "a swap expects no revision";
  if (expected_ > known_.revision || lost_ > expected_) return "a swap expects a revision that is not known";
  if (reading_ && readDue_) return "a read is scheduled while one is pending";
  if (uncertain_ && !reading_ && !readDue_) return "no read follows a swap without an answer";
  return "";
}

}  // namespace psd
