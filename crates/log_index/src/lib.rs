//! The index of a log file: which bytes of which data log are which bytes of the file.
//!
//! Each client that writes a log file appends its bytes to a data log of its own. It registers with the index where
//! each byte of the file is in the log. The index is divided into shards by file offset; each shard is on one iod. A
//! shard applies registrations in the order in which they arrive: the later one wins ([`Index`]). Bytes of which the
//! index knows nothing are in the striped base of the file: objects that are striped over the iods as those of a striped
//! file.
//!
//! Writers of checkpoints write equally long records at equal distances. So the unit of the index is not the record,
//! but the [`Run`] of records, and the index of such a file has the same size for any number of records (PLFS calls
//! this a pattern index).

mod encoding;
mod index;
mod packed;
mod record;
mod run;
mod run_builder;
mod run_set;
mod shard;

pub use encoding::{decode, encode};
pub use index::{Index, LOGS_MAX, PENDING_MAX, RUNS_MAX, Refused};
pub use record::Record;
pub use run::{BadRun, Extent, LogNumber, PIECES_MAX, Run, Source};
pub use run_builder::RunBuilder;
pub use run_set::RunSet;
pub use shard::Shard;
