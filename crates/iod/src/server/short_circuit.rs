//! The LEND procedure, which passes descriptors of object files to clients on the same machine for short-circuit reads.
//!
//! The iod cannot revoke a descriptor. So it passes descriptors only to users that could open the file anyway: the
//! superuser and the user of the iod process. All other users send READ.

use rustix::io::Errno;
use types::Status;
use wire::native::{Failure, LendReply, Loan, ObjectArgs, Rights, encode_reply};
use wire::rpc::ReplyHeader;

use super::connection::{Broken, Connection};
use super::socket::Channel;
use crate::store::{HEAD_LEN, ShortCircuitFile};

impl<C: Channel> Connection<C> {
    /// Executes LEND: sends a descriptor of the object's file with the reply.
    pub(super) fn lend(&mut self, xid: u32, args: &ObjectArgs) -> Result<(), Broken> {
        let lent = match self.find_to_lend(args) {
            Ok(Some(lent)) => lent,
            Ok(None) => return self.answer(xid, Ok(LendReply { loan: None })),
            Err(failure) => return self.answer::<LendReply>(xid, Err(failure)),
        };
        let reply = LendReply { loan: Some(Loan { begin: HEAD_LEN, mark: lent.mark.into() }) };
        self.encode(&ReplyHeader::success(xid), 0, |out| encode_reply(&Ok(reply), out));
        self.socket.wait_begins();
        match self.socket.send_lending(&self.output, &lent.file) {
            // The kernel passed no descriptor, because too many descriptors are in flight (ETOOMANYREFS). This is
            // temporary, so reply `Delay`.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::TOOMANYREFS) => {
                self.answer::<LendReply>(xid, Err(Status::Delay.into()))
            }
            sent => {
                sent?;
                self.socket.wait_ends();
                Ok(())
            }
        }
    }

    fn find_to_lend(&self, args: &ObjectArgs) -> Result<Option<ShortCircuitFile>, Failure> {
        let (object, generation) = self.object(&args.cap, Rights::READ)?;
        if !self.volume()?.short_circuit || !self.socket.may_have_files() {
            let detail =
                "short-circuit reads are disabled on this iod, or not allowed for this user or connection".to_owned();
            return Err(Failure { status: Status::NotSupp, detail: Some(detail) });
        }
        object.lend(self.store()?, generation)
    }
}
