#pragma once

#ifndef NDEBUG
#include <cstdio>
#include <cstdlib>
#include <string>
#endif

namespace psd {

/// Checks the invariants of an object at the end of a scope that changes it: aborts with the violated one,
/// the text of `std::string T::checkInvariants() const`. Does nothing with NDEBUG.
template <class T>
class InvariantCheck {
 public:
#ifdef NDEBUG
  explicit InvariantCheck(const T&) {}
#else
  explicit InvariantCheck(const T& object) : object_(object) {}
  InvariantCheck(const InvariantCheck&) = delete;
  InvariantCheck& operator=(const InvariantCheck&) = delete;
  ~InvariantCheck() {
    const std::string violated = object_.checkInvariants();
    if (violated.empty()) return;
    static_cast<void>(std::fprintf(stderr, "violated invariant: %s\n", violated.c_str()));
    std::abort();
  }

 private:
  const T& object_;
#endif
};

}  // namespace psd
