// Linked under ThreadSanitizer only. The system's libkj is not instrumented and its mutex waits on futexes,
// so the sanitizer misses the happens-before edges and reports every handover between event loops as a race.
// These definitions override libkj's, call them, and report the edges to the sanitizer.

#include <dlfcn.h>
#include <kj/mutex.h>
#include <sanitizer/tsan_interface.h>

namespace kj::_ {
namespace {

/// libkj's definition of the function with this mangled name.
template <class Function>
Function next(const char* mangled) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, mangled));
}

}  // namespace

bool Mutex::lock(Exclusivity exclusivity, Maybe<Duration> timeout, LockSourceLocationArg location) {
  static const auto lockIt = next<bool (*)(Mutex*, Exclusivity, Maybe<Duration>, LockSourceLocationArg)>(
      "_ZN2kj1_5Mutex4lockENS1_11ExclusivityENS_5MaybeINS_8QuantityIlNS0_15NanosecondLabelEEEEE"
      "NS_18NoopSourceLocationE");
  bool locked = lockIt(this, exclusivity, timeout, location);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::unlock(Exclusivity exclusivity, Waiter* waiterToSkip) {
  static const auto unlockIt =
      next<void (*)(Mutex*, Exclusivity, Waiter*)>("_ZN2kj1_5Mutex6unlockENS1_11ExclusivityEPNS1_6WaiterE");
  __tsan_release(this);
  unlockIt(this, exclusivity, waiterToSkip);
}

void Mutex::wait(Predicate& predicate, Maybe<Duration> timeout, LockSourceLocationArg location) {
  static const auto waitFor = next<void (*)(Mutex*, Predicate&, Maybe<Duration>, LockSourceLocationArg)>(
      "_ZN2kj1_5Mutex4waitERNS1_9PredicateENS_5MaybeINS_8QuantityIlNS0_15NanosecondLabelEEEEE"
      "NS_18NoopSourceLocationE");
  __tsan_release(this);
  waitFor(this, predicate, timeout, location);
  __tsan_acquire(this);
}

}  // namespace kj::_
