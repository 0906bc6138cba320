//! The records that a shard writes to its disk, one after the other. All records together, applied in their order, are
//! the durable state of the shard.

use super::encoding::{decode, encode, put, take};
use super::run::{LogNumber, Run};
use xdr::Malformed;

/// Number of runs in each record of a checkpoint.
pub(super) const CHUNK: usize = 4096;

/// A durable change of a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// The numbers of data logs below this number are in use, or are reserved for the running iod.
    Logs(u32),
    /// Runs of data that are durable. Each run replaces what earlier records say about its bytes.
    Runs {
        /// The data log of the writer that registered the runs.
        log: LogNumber,
        /// The sequence number of the writer's last registration in this record.
        sequence: u64,
        /// The runs, in the order in which they replace one another.
        runs: Vec<Run>,
    },
    /// The start of a checkpoint: everything that the shard knows, except its runs. Records of [`Record::Runs`] with
    /// all runs of the shard follow. The records before a checkpoint have no meaning any more.
    Checkpoint {
        /// As in [`Record::Logs`].
        logs: u32,
        /// Offset after the last byte of the file that is in a log.
        end: u64,
        /// The sequence number of the last registration of each writer.
        sequences: Vec<(LogNumber, u64)>,
    },
}

const LOGS: u8 = 1;
const RUNS: u8 = 2;
const CHECKPOINT: u8 = 3;

impl Record {
    /// Encodes the record: a byte with its type, and variable-length integers.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Record::Logs(logs) => {
                out.push(LOGS);
                put(&mut out, (*logs).into());
            }
            Record::Runs { log, sequence, runs } => {
                out.push(RUNS);
                put(&mut out, log.0.into());
                put(&mut out, *sequence);
                out.extend(encode(runs.iter().copied()));
            }
            Record::Checkpoint { logs, end, sequences } => {
                out.push(CHECKPOINT);
                put(&mut out, (*logs).into());
                put(&mut out, *end);
                for (log, sequence) in sequences {
                    put(&mut out, log.0.into());
                    put(&mut out, *sequence);
                }
            }
        }
        out
    }

    /// Decodes a record, which must use all bytes.
    ///
    /// # Errors
    /// The bytes do not encode a record.
    pub fn decode(mut bytes: &[u8]) -> Result<Record, Malformed> {
        let bytes = &mut bytes;
        let kind = bytes.split_off_first().copied().ok_or(Malformed::Short)?;
        let record = match kind {
            LOGS => Record::Logs(take(bytes)?),
            RUNS => {
                let (log, sequence) = (LogNumber(take(bytes)?), take(bytes)?);
                // A run takes at least two bytes, so the number of bytes limits the memory for the runs.
                let runs = decode(bytes, bytes.len())?;
                *bytes = &[];
                Record::Runs { log, sequence, runs }
            }
            CHECKPOINT => {
                let (logs, end, mut sequences) = (take(bytes)?, take(bytes)?, Vec::new());
                while !bytes.is_empty() {
                    sequences.push((LogNumber(take(bytes)?), take(bytes)?));
                }
                Record::Checkpoint { logs, end, sequences }
            }
            kind => return Err(Malformed::BadValue { what: "type of a record of the index", value: kind.into() }),
        };
        if bytes.is_empty() { Ok(record) } else { Err(Malformed::Trailing) }
    }
}
