//! NEWS: an iod reports to the mgr which objects clients of the files layout have written with FILE_SYNC. Those NFS
//! clients do not report such writes themselves.

use types::ObjectId;
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{Capability, NEWS_MAX, put_object, take_object};

/// Arguments of NEWS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewsArgs {
    /// Capability for the whole store ([`super::STORE_OBJECT`]); needs the right ADMIN.
    pub cap: Capability,
    /// Number of the last reply whose reports the mgr has processed. A restarted mgr sends 0, and the iod then forgets
    /// which reports the mgr has confirmed.
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

/// Result of NEWS. If no object is written for a while, the iod replies without objects.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NewsReply {
    /// Number of this reply. The mgr sends it with its next NEWS, to confirm the reports.
    pub number: u64,
    /// Objects that clients have written. The mgr must update the change attributes of their files, and ask the iods
    /// for the sizes of the objects.
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
