//! WRITE_REPORTS: an iod reports to the mgr which objects clients of the files layout have written with FILE_SYNC.
//! Those NFS clients do not report such writes themselves.

use types::ObjectId;
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{Capability, WRITE_REPORTS_MAX, put_object, take_object};

/// Arguments of WRITE_REPORTS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteReportsArgs {
    /// Capability for the whole store ([`super::STORE_OBJECT`]); needs the right ADMIN.
    pub cap: Capability,
    /// Sequence number of the last WRITE_REPORTS reply whose objects the mgr has processed. A restarted mgr sends 0.
    /// The iod then forgets which reports the mgr has confirmed.
    pub known: u64,
}

impl Xdr for WriteReportsArgs {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        out.u64(self.known);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(WriteReportsArgs { cap: Capability::decode(input)?, known: input.u64()? })
    }
}

/// Result of WRITE_REPORTS. If no client writes an object for some time, the iod sends a reply without objects.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WriteReportsReply {
    /// Sequence number of this reply. The mgr sends this sequence number with its next WRITE_REPORTS, to confirm that
    /// it has processed the objects.
    pub number: u64,
    /// Objects that clients have written. The mgr must update the change attributes of their files, and request the
    /// sizes of the objects from the iods.
    pub written: Vec<ObjectId>,
}

impl Xdr for WriteReportsReply {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.number);
        out.array(&self.written, |out, object| put_object(out, *object));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(WriteReportsReply { number: input.u64()?, written: input.array(WRITE_REPORTS_MAX, take_object)? })
    }
}
