#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "trainer/client/link.h"

namespace psd {

/// A client's current connections. The first joins; the others attach, and a failure of one fails all. Used
/// with the client's lock held.
class Links {
 public:
  explicit Links(std::unique_ptr<Link> first) { links_.push_back(std::move(first)); }
  ~Links();

  /// Makes all calls that are not divided among connections.
  Link& first() const { return *links_.front(); }
  Link& at(uint32_t index) const { return *links_[index]; }
  /// Number of the first link's current channel; rises with each new one.
  uint64_t number() const { return number_; }
  void countChannel() { number_++; }
  /// The slices that each connection carries.
  const std::shared_ptr<const DividedSlices>& slices() const { return slices_; }
  uint32_t inUse() const { return slices_->links; }
  /// Null where values are pulled slice by slice.
  const std::shared_ptr<const SharedModel>& sharedModel() const { return shared_; }

  /// After the first has joined or observes: it carries all slices, and uses the daemon's shared memory if
  /// offered.
  void useFirst();
  /// The link at `index`, created if needed.
  Result<Link*> make(uint32_t index);
  /// When the first `links` have a channel in the session: divides the slices among them; from now on, when
  /// one fails, all do.
  void divide(uint32_t links);
  /// Undoes the coupling: a connection that fails no longer fails the others.
  void decouple();
  void fail(const Error& why);

  /// Starts a call in which each connection in use has a share.
  template <class T>
  Answers<T> startOnAll(const std::function<kj::Promise<Result<T>>(Channel&)>& work) const {
    std::vector<Link::Future<T>> parts;
    for (uint32_t i = 0; i < inUse(); i++) parts.push_back(links_[i]->start<T>(work));
    return Answers<T>(std::move(parts));
  }

 private:
  std::vector<std::unique_ptr<Link>> links_;  // never shrinks
  uint64_t number_ = 0;
  std::shared_ptr<const DividedSlices> slices_ = std::make_shared<DividedSlices>();
  std::shared_ptr<const SharedModel> shared_;
};

}  // namespace psd
