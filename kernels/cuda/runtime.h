// Owners of what the CUDA runtime hands out: memory, streams, events. Move-only, freed in the
// destructor, no policy. Includes no CUDA header, so that tests and backend.cpp can use it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

// The runtime's own names for its opaque handles.
struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;

namespace fut::cuda {

using StreamHandle = CUstream_st*;
using EventHandle = CUevent_st*;
using GraphHandle = CUgraphExec_st*;

// Makes device `index` the current one of this thread. Throws Runtime.
void use_device(int index);

// What the driver says of the current device's memory, whoever uses it; zeros where it says nothing.
struct DeviceMemoryState {
  std::size_t total_bytes = 0;
  std::size_t free_bytes = 0;
};
[[nodiscard]] DeviceMemoryState device_memory();

// Work in the order in which it was given, beside other streams. Does not wait for the default
// stream.
class Stream {
 public:
  Stream();
  [[nodiscard]] StreamHandle handle() const { return handle_.get(); }
  // Waits for all work given so far; throws Runtime where some of it failed.
  void synchronize() const;
  // Whether all work given so far is done; throws as synchronize().
  [[nodiscard]] bool is_idle() const;

 private:
  struct Destroy {
    void operator()(StreamHandle stream) const noexcept;
  };
  std::unique_ptr<CUstream_st, Destroy> handle_;
};

// A point in a stream's work.
class Event {
 public:
  Event();
  void record(const Stream& stream) const;
  void synchronize() const;
  // Both must have been recorded and reached.
  [[nodiscard]] float milliseconds_since(const Event& earlier) const;

 private:
  struct Destroy {
    void operator()(EventHandle event) const noexcept;
  };
  std::unique_ptr<CUevent_st, Destroy> handle_;
};

// Launches recorded once, to be launched again as one.
class Graph {
 public:
  // Records what `body` launches in `stream`; nothing runs yet. Where `body` throws, the recording ends
  // and the stream is as before.
  Graph(const Stream& stream, const std::function<void()>& body);
  void launch(const Stream& stream) const;

 private:
  struct Destroy {
    void operator()(GraphHandle graph) const noexcept;
  };
  std::unique_ptr<CUgraphExec_st, Destroy> handle_;
};

// Memory of the current device, at least 256-byte aligned, contents undefined. Throws Capacity with
// wanted and free bytes.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes);
  template <class T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_.get());
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* data) const noexcept;
  };
  std::size_t bytes_;
  std::unique_ptr<void, Free> data_;
};

// Host memory that the device can read and write without a copy in between. Throws Capacity.
class PinnedMemory {
 public:
  explicit PinnedMemory(std::size_t bytes);
  [[nodiscard]] std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(data_.get()), size_};
  }

 private:
  struct Free {
    void operator()(void* data) const noexcept;
  };
  std::size_t size_;
  std::unique_ptr<void, Free> data_;
};

// Copies in the stream's order. The source must stay as it is until a synchronize().
void copy_to_device(void* destination, std::span<const std::byte> source, const Stream& stream);
void copy_to_host(std::span<std::byte> destination, const void* source, const Stream& stream);

}  // namespace fut::cuda
