#pragma once

#include "server/status/daemon_status.h"

namespace psd::testing {

/// A status in which every list has an entry and every optional field is set.
inline DaemonStatus sampleStatus() {
  DaemonStatus status;
  status.version = "0.1.0";
  status.pid = 4711;
  status.host = "node-3";
  status.uptimeSeconds = 3723.5;
  status.addresses = {"tcp://node-3:5500", "unix:///run/psd.sock"};
  status.threads = 2;
  status.residentBytes = 19'398'656;
  status.openDescriptors = 40;
  status.held = {.inFlight = 1 << 20, .staged = 65'535};
  status.limits = {.inFlight = 1 << 30, .staged = 1 << 30};
  status.state = "serving";
  status.losesModel = true;
  status.movedTo = {"tcp://node-5:5500,tcp://node-6:5500"};
  status.movedFrom = {"tcp://node-2:5500"};
  status.policy = "sync";
  status.optimizer = "sgd lr=0.03";
  status.model = {.name = "mnist_cnn", .parameters = 1'199'882, .tensors = 8, .ready = true};
  status.shards = {
      {.id = 0, .begin = 0, .elements = 600'000, .group = "others", .device = "cpu", .version = 190},
      {.id = 1, .begin = 600'000, .elements = 599'904, .group = "others", .device = "cpu", .version = 189}};
  status.worldSize = 2;
  status.worldSizeMin = 1;
  status.trainersLost = 3;
  status.trainers = {{.rank = 0,
                      .host = "node-4",
                      .pid = 8243,
                      .process = "000000ff",
                      .step = 107,
                      .staleness = 2,
                      .stalenessHistogram = {.count = 107,
                                             .sum = 120,
                                             .most = 9,
                                             .buckets = {{0, 60}, {1, 40}, {std::nullopt, 7}}},
                      .pulledBytes = 513'592'524,
                      .pushedBytes = 1000,
                      .pulledValueBytes = 513'592'524,
                      .pushedValueBytes = 66'100,
                      .codec = "topk:fraction=0.01",
                      .pullCodec = "none",
                      .lastSeenSeconds = 0.012,
                      .waitsFor = "push",
                      .connected = true,
                      .connections = 1,
                      .leaseLeftSeconds = 9.988}};
  status.samples = {.epoch = 4000, .epochs = 6, .done = 128};
  status.waiting = {{.group = "others",
                     .policy = "sync",
                     .what = "round 826",
                     .joins = 0,
                     .ranks = {0},
                     .awaited = {{.rank = 1, .waitedSeconds = 3.2}}}};
  status.durability = {.type = "log",
                       .path = "saved",
                       .lastCheckpoint = {{.path = "saved/checkpoint-0000000001",
                                           .ageSeconds = 61,
                                           .durationSeconds = 0.25,
                                           .pauseSeconds = 0.0005,
                                           .writtenBytes = 4'799'528,
                                           .updates = 379}},
                       .checkpoints = 1,
                       .checkpointPauseMaxSeconds = 0.0005,
                       .checkpointCopyBytes = 2'400'000,
                       .log = {{.records = 400, .writtenBytes = 1'920'000, .syncs = 90}}};
  status.learningRates = {{.group = "others", .rate = 0.03}};
  status.disks = {{.path = "saved", .freeBytes = 1'000'000'000, .sizeBytes = 2'000'000'000}};
  status.certificateExpirySeconds = 1'900'000'000;
  status.gradientsPerSecond = 12.3;
  DaemonMetrics counters;
  counters.gradients.add(189);
  counters.updates.add(758);
  counters.connectionsOpen.add(3);
  for (int i = 0; i < 100; i++) counters.staleness.record(i < 98 ? 1 : 17);
  status.counters = MetricValues<Counter>(counters);
  status.gauges = MetricValues<Gauge>(counters);
  status.histograms = MetricValues<Histogram>(counters);
  return status;
}

}  // namespace psd::testing
