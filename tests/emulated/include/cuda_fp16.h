// Its functions are used by device code alone; the emulator runs the host's.
#pragma once
