#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "trainer/client/link.h"

namespace psd {

/// A client's connections, as they are now. The first joins; where there are others they attach, and all
/// stand or fall together. Owned by the client's thread.
class Links {
 public:
  explicit Links(std::unique_ptr<Link> first) { links_.push_back(std::move(first)); }
  ~Links();

  /// The one that makes all calls of which there are no shares.
  Link& first() const { return *links_.front(); }
  Link& at(uint32_t index) const { return *links_[index]; }
  /// Which of the channels that took each other's place the first has; rises.
  uint64_t number() const { return number_; }
  void countChannel() { number_++; }
  /// What each carries.
  const std::shared_ptr<const DividedSlices>& slices() const { return slices_; }
  uint32_t inUse() const { return slices_->links; }
  /// Null where values are pulled slice by slice.
  const std::shared_ptr<const SharedModel>& sharedModel() const { return shared_; }

  /// After the first has joined or observes: it carries all, and shares the daemon's memory if it may.
  void useFirst();
  /// One of so many, made if need be.
  Result<Link*> make(uint32_t index);
  /// From now on, when that many have a channel in the session, they divide the slices among them, and when
  /// one of them fails all do.
  void divide(uint32_t links);
  /// Undoes the last: a connection that fails leaves the others alone.
  void standAlone();
  void fail(const Error& why);

  /// Starts a call of which each connection in use has its share.
  template <class T>
  Answers<T> startOnAll(const std::function<kj::Promise<Result<T>>(Channel&)>& work) const {
    std::vector<Link::Future<T>> parts;
    for (uint32_t i = 0; i < inUse(); i++) parts.push_back(links_[i]->start<T>(work));
    return Answers<T>(std::move(parts));
  }

 private:
  std::vector<std::unique_ptr<Link>> links_;  // as many as were ever needed
  uint64_t number_ = 0;
  std::shared_ptr<const DividedSlices> slices_ = std::make_shared<DividedSlices>();
  std::shared_ptr<const SharedModel> shared_;
};

}  // namespace psd
