#pragma once

namespace psd {

/// While it lives, the first SIGINT or SIGTERM is remembered instead of ending the process; a second one
/// ends it at once. One per process at a time; made and dropped on the main thread.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The signal that came, or 0.
  int received() const;
};

}  // namespace psd
