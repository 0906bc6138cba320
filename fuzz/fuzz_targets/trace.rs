//! Fuzz target for text traces: any bytes parse to a trace or an error, and a printed trace parses to the same trace.
#![cfg_attr(fuzzing, no_main)]

use trace::{CLIENTS_MAX, END_MAX, FILES_MAX, LEN_MAX, parse, print};

/// Parses `data` as a trace.
pub fn run(data: &[u8]) {
    let Ok(trace) = parse(data) else { return };
    assert!(trace.clients.len() <= CLIENTS_MAX && trace.len() <= data.len());
    assert!(trace.ops().all(|op| op.file < FILES_MAX && op.len <= LEN_MAX && op.end() <= END_MAX));
    assert_eq!(parse(print(&trace).as_bytes()).as_ref(), Ok(&trace));
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
