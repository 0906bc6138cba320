//! Common types of all parts of Weir: identifiers, attributes, credentials, status codes and limits.

pub mod attr;
pub mod cred;
pub mod id;
pub mod limits;
pub mod log_rate_limit;
pub mod machine;
pub mod name;
#[cfg(feature = "planted")]
pub mod planted;
pub mod range;
pub mod renaming;
pub mod status;
pub mod time;

pub use attr::{Attrs, DirEntry, FileKind, SetAttrs, SetTime, StatFs, leaves_hole};
pub use cred::Cred;
pub use id::{FileId, Fsid, Generation, INDEX_STREAM, IodId, LOG_STREAMS, ObjectId, StoreId, Verifier};
pub use log_rate_limit::LogRateLimit;
pub use machine::Machine;
pub use range::ByteRange;
pub use renaming::Renaming;
pub use status::Status;
pub use time::Timestamp;
