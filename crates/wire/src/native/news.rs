//! NEWS: objects that clients of the files layout have written and made durable, which nobody else tells the mgr.

use types::FileId;
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{Capability, NEWS_MAX};

/// Arguments of NEWS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewsArgs {
    /// For [`super::STORE_OBJECT`]; needs ADMIN.
    pub cap: Capability,
    /// The number of the last answer that was dealt with, 0 to begin: what this iod was told is known counts for nothing then.
    pub known: u64,
}

impl Xdr for NewsArgs {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        out.u64(self.known);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(NewsArgs { cap: Capability::decode(input)?, known: input.u64()? })
    }
}

/// Result of NEWS; nothing new for a while is an answer too.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NewsReply {
    /// Number of this answer, to be told with the next NEWS.
    pub number: u64,
    /// Objects that were written: how long their files are is to be learnt, and that they have changed.
    pub written: Vec<FileId>,
}

impl Xdr for NewsReply {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.number);
        out.array(&self.written, |out, object| out.u64(object.0));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(NewsReply { number: input.u64()?, written: input.array(NEWS_MAX, |input| input.u64().map(FileId))? })
    }
}
