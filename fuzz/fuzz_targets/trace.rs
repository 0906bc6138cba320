//! Text traces: any bytes are a trace or an error, and a trace is read back as it was printed.
#![cfg_attr(fuzzing, no_main)]

use trace::{CLIENTS_MAX, END_MAX, FILES_MAX, LEN_MAX, parse, print};

/// Feeds `data` to the parser.
pub fn run(data: &[u8]) {
    let Ok(trace) = parse(data) else { return };
    assert!(trace.clients.len() <= CLIENTS_MAX && trace.len() <= data.len());
    assert!(trace.ops().all(|op| op.file < FILES_MAX && op.len <= LEN_MAX && op.end() <= END_MAX));
    assert_eq!(parse(print(&trace).as_bytes()).as_ref(), Ok(&trace));
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
