//! The event trace of a run: a hash over all events, by which tests compare two runs, and optionally the events as
//! text.

use std::cell::RefCell;
use std::time::Duration;
use tokio::time::Instant;

struct Trace {
    start: Instant,
    hash: u64,
    events: u64,
    print: bool,
}

thread_local! {
    static TRACE: RefCell<Option<Trace>> = const { RefCell::new(None) };
}

/// Starts recording events in this thread. With `print`, also writes every event to standard error.
pub fn begin(print: bool) {
    TRACE.set(Some(Trace { start: Instant::now(), hash: 0, events: 0, print }));
}

/// Ends recording. Returns the hash over all events and the number of events.
pub fn end() -> (u64, u64) {
    TRACE.take().map_or((0, 0), |trace| (trace.hash, trace.events))
}

/// Returns the simulated time that has passed in this thread's recording.
pub fn elapsed() -> Duration {
    TRACE.with_borrow(|trace| trace.as_ref().map_or(Duration::ZERO, |trace| trace.start.elapsed()))
}

/// Returns whether this thread prints events.
pub fn prints() -> bool {
    TRACE.with_borrow(|trace| trace.as_ref().is_some_and(|trace| trace.print))
}

/// Adds a number to a hash, and returns the new hash.
pub fn mix(hash: u64, more: u64) -> u64 {
    let product = u128::from(hash ^ more ^ 0x2545_f491_4f6c_dd1d) * u128::from(0x9fb2_1c65_1e98_df25_u64);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Returns a 64-bit hash of `bytes`.
pub fn digest(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(bytes.len() as u64, mix)
}

/// Records an event. The hash covers only `numbers`; `text` is called only if the thread prints events.
pub fn event(numbers: &[u64], text: impl FnOnce() -> String) {
    TRACE.with_borrow_mut(|trace| {
        let Some(trace) = trace else { return };
        let at = trace.start.elapsed();
        trace.events += 1;
        trace.hash = numbers.iter().fold(mix(trace.hash, at.as_nanos() as u64), |hash, number| mix(hash, *number));
        if trace.print {
            eprintln!("{:>11.3} {}", at.as_secs_f64(), text());
        }
    });
}

/// Records an event whose text is part of the hash.
pub fn say(text: impl Into<String>) {
    let text = text.into();
    event(&[digest(text.as_bytes())], || text);
}
