//! NEWS: reports to the mgr the objects that clients of the files layout have written and made durable, because no
//! client reports them.

use types::ObjectId;
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{Capability, NEWS_MAX, put_object, take_object};

/// Arguments of NEWS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewsArgs {
    /// For [`super::STORE_OBJECT`]; needs ADMIN.
    pub cap: Capability,
    /// The number of the last reply that the mgr has processed. 0 starts again: the iod forgets earlier
    /// acknowledgements.
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

/// Result of NEWS. The iod also replies, with an empty list, when nothing was written for a while.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NewsReply {
    /// Number of this reply; the mgr returns it with the next NEWS.
    pub number: u64,
    /// Objects that were written. The mgr must record the change of their files and ask for their lengths.
    pub written: Vec<ObjectId>,
}

impl Xdr for NewsReply {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.number);
        out.array(&self.written, |out, object| put_object(out, *object));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(NewsReply { number: input.u64()?, written: input.array(NEWS_MAX, take_object)? })
    }
}
