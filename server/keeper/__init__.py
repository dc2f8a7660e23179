"""The keeper: a process without CUDA that holds device memory while workers come and go.

Device memory made with a shareable handle lives as long as one descriptor of it is open. The
keeper holds those descriptors and one small page for each session, so a new worker can map the
very memory its predecessor used. It imports nothing but the standard library, so that there is
next to nothing in it that has to be upgraded.
"""
