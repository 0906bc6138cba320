//! Fuzz target: replays a batch log and its anchor (the position of the store in the log) that contain arbitrary
//! bytes. The records that the log accepts must have consecutive sequence numbers, and the log must be able to append
//! new records.
#![cfg_attr(fuzzing, no_main)]

use meta::LogDisk;
use meta::log::{Anchor, BLOCK, Changes, Head, Log};
use std::io;
use std::sync::{Arc, Mutex};

/// A log device in memory with arbitrary bytes.
#[derive(Clone)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl LogDisk for Bytes {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().expect("bytes").len() as u64)
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.lock().expect("bytes");
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        out.copy_from_slice(bytes.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut bytes = self.0.lock().expect("bytes");
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        bytes.get_mut(from..from + data.len()).ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(data);
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.lock().expect("bytes").resize(len as usize, 0);
        Ok(())
    }
    fn room(&self) -> u64 {
        0
    }
}

/// Replays a log: the first 56 bytes of `data` are the anchor, and the other bytes are the ring.
pub fn run(data: &[u8]) {
    let Some((anchor, ring)) = data.split_first_chunk::<56>() else { return };
    let Ok(anchor) = Anchor::from_bytes(anchor) else { return };
    assert_eq!(Anchor::from_bytes(&anchor.to_bytes()), Ok(anchor));
    Head::read(ring);
    // Make the head of the log valid, so that replay also decodes the bytes after the head.
    let disk = Bytes(Arc::default());
    Log::format(Box::new(disk.clone()), anchor.store).expect("memory does not fail");
    {
        let mut bytes = disk.0.lock().expect("bytes");
        bytes.truncate(BLOCK as usize);
        bytes.extend_from_slice(ring);
    }
    let Ok(mut log) = Log::open(Box::new(disk.clone()), anchor) else { return };
    let mut records = Vec::new();
    loop {
        match log.read_on() {
            Ok(Some(changes)) => records.push(changes),
            Ok(None) => break,
            Err(_) => return,
        }
    }
    assert!(records.len() as u64 <= anchor.size / BLOCK);
    assert_eq!(log.anchor().index, anchor.index + records.len() as u64);
    log.begin();
    log.applied();
    let after = log.anchor();
    assert_eq!(after.run, anchor.run + 1);
    let next = Changes::from([(b"key".to_vec(), Some(b"value"[..].into()))]);
    if log.prepare(&next) {
        log.append().expect("within the ring");
        let mut log = Log::open(Box::new(disk), after).expect("as before");
        assert_eq!(log.read_on().expect("one record"), Some(next));
        assert_eq!(log.read_on().expect("no more"), None);
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
